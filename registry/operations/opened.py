"""A registry's store and index, each opened when it is first needed: so finding an adapter by its digest never loads
SQLAlchemy."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from registry.core.errors import IndexMissing
from registry.core.times import text_of
from registry.disk import make_directories
from registry.store import LocalStore

if TYPE_CHECKING:
    from registry.index import Database, Index

_INDEX_FILE = "index.sqlite"


class Opened:
    """What is in the directory `home`. `note` is told what a person should know."""

    def __init__(self, home: str, note: Callable[[str], None]) -> None:
        self.store = LocalStore(home)
        self.note = note
        self._home = home

    @cached_property
    def database(self) -> Database:
        """The index's database, as it is."""
        from registry.index import Database  # noqa: PLC0415  SQLAlchemy takes longer to import than `get` runs

        make_directories(self._home)
        return Database(os.path.join(self._home, _INDEX_FILE))

    @cached_property
    def index(self) -> Index:
        """The index, as it is."""
        from registry.index import Index  # noqa: PLC0415

        return Index(self.database)

    def mended(self) -> Index:
        """The index, once it has what the store holds.

        Raises:
            IndexMissing: it knows nothing, and the store has too much to be read in passing.
        """
        from registry.operations.mend import mend  # noqa: PLC0415

        mend(self.store, self.index, now(), self.note)
        return self.index

    def mended_if_any(self) -> Index | None:
        """For questions: None where there is no registry, since asking makes none."""
        return self.mended() if os.path.lexists(self._home) else None

    def mended_or_not(self) -> Index | None:
        """For updates: None where the index is missing. What is stored meanwhile stays announced until it is there."""
        try:
            return self.mended()
        except IndexMissing as error:
            self.note(str(error))
            return None


def now() -> str:
    """UTC, ISO 8601, in microseconds: as text it sorts as it does in time."""
    return text_of(dt.datetime.now(dt.UTC))
