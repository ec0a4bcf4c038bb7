"""The index: a derived, queryable view of the store's records. The only place that knows SQLAlchemy and Alembic.

Everything in it can be rebuilt from records; it is never the only holder of a fact.
"""

from registry.index.database import Database
from registry.index.index import Index, Moving

__all__ = ["Database", "Index", "Moving"]
