"""The index's database: SQLite's settings, transactions, and the schema's revision checked before anything is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from registry.core.errors import IndexVersion, StorageError
from registry.core.summary import IndexRevision
from registry.index.schema import HEAD

_BUSY_TIMEOUT = 60.0  # seconds a writer waits for another one
_WRITE = "aorlta_write"


class Database:
    """One SQLite file. It is created, and brought from an older schema to this program's, when it is first used.

    Raises (all methods):
        StorageError: the database cannot be opened, is locked for a minute, or is not one.
        IndexVersion: the schema is newer than this program.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._engine = create_engine(URL.create("sqlite", database=path), connect_args={"timeout": _BUSY_TIMEOUT})
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", _begin)
        self._ready = False

    def revision(self) -> IndexRevision:
        """The schema's revision, found and needed."""
        with self._transaction(write=False) as connection:
            return _revision(connection)

    def upgrade(self) -> None:
        """Bring the schema up to date."""
        from registry.index import migrate  # noqa: PLC0415  Alembic takes longer to import than most commands run

        with self._transaction(write=True) as connection:
            found = _revision(connection).found
            if found is not None and found not in migrate.known_revisions():
                raise IndexVersion(
                    "the index was written by a newer aorlta-reg",
                    path=self._path,
                    found=f"revision {found}",
                    expected=HEAD,
                    hint="Upgrade the program: pip install --upgrade aorlta-registry",
                )
            migrate.run(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a read transaction."""
        self._make_ready()
        with self._transaction(write=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection in a write transaction: it takes the write lock at once and commits when the block ends."""
        self._make_ready()
        with self._transaction(write=True) as connection:
            yield connection

    def _make_ready(self) -> None:
        if not self._ready and self.revision().found != HEAD:
            self.upgrade()
        self._ready = True

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        try:
            with self._engine.execution_options(**{_WRITE: write}).begin() as connection:
                yield connection
        except DBAPIError as error:
            raise StorageError(f"the index failed: {error.orig}", path=self._path) from error


def _revision(connection: Connection) -> IndexRevision:
    known = connection.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")).first()
    found = known and connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return IndexRevision(found or None, HEAD)


def _configure(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}").close()


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
