"""The index's database: SQLite's settings, transactions, and the schema's revision checked before anything is read."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError

from registry.core.errors import IndexDamaged, IndexVersion, StorageError
from registry.core.summary import IndexRevision
from registry.disk import translated
from registry.index.schema import HEAD, metadata

_BUSY_TIMEOUT = 60.0  # seconds a writer waits for another one
_WRITE = "aorlta_write"
_DAMAGE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""The first is for tables that are not what they should be."""
_CUT_OFF = sqlite3.SQLITE_IOERR_SHORT_READ  # pages that the database must have are not in the file
_COMPANIONS = ("-wal", "-shm", "-journal")  # before the database itself: SQLite would apply them to the next one


class Database:
    """One SQLite file. It is created, and brought from an older schema to this program's, when it is first used.

    Raises (all methods):
        StorageError: the database cannot be opened, or is locked for a minute.
        IndexDamaged: it is not a database, or not a sound one.
        IndexVersion: the schema is newer than this program.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._engine = create_engine(URL.create("sqlite", database=path), connect_args={"timeout": _BUSY_TIMEOUT})
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", _begin)
        self._modes = {write: self._engine.execution_options(**{_WRITE: write}) for write in (False, True)}
        self._ready = False

    def exists(self) -> bool:
        """Whether there is a file."""
        return os.path.lexists(self._path)

    def is_sound(self) -> bool:
        """Whether every page and every table is in order. Reads all of it."""
        try:
            with self.reading() as connection:
                for table in metadata.sorted_tables:
                    connection.execute(select(table).limit(0))
                return bool(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one() == "ok")
        except IndexDamaged:
            return False

    def set_aside(self) -> str:
        """Rename the database, so that the next use makes a new one; returns where it is now."""
        self._engine.dispose()
        self._ready = False
        kept = f"{self._path}.damaged-{secrets.token_hex(4)}"
        with translated(self._path):
            for end in _COMPANIONS:
                with suppress(FileNotFoundError):
                    os.rename(self._path + end, kept + end)
            os.rename(self._path, kept)
        return kept

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
            with self._modes[write].begin() as connection:
                yield connection
        except DBAPIError as error:
            code = getattr(error.orig, "sqlite_errorcode", 0)
            if code & 0xFF in _DAMAGE or code == _CUT_OFF:
                hint = "Run `aorlta-reg reindex`: it is made anew from the store"
                raise IndexDamaged(f"the index is damaged: {error.orig}", path=self._path, hint=hint) from error
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
