"""Alembic's environment. Connection and metadata are handed in, so nothing of the package is imported here."""

from alembic import context

config = context.config
connection = config.attributes["connection"]

context.configure(
    connection=connection,
    target_metadata=config.attributes["metadata"],
    render_as_batch=True,  # SQLite alters a table by rebuilding it
    transactional_ddl=False,  # the caller's transaction holds all of it
)
context.run_migrations()
