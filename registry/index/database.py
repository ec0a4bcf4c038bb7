"""The index's database: SQLite's settings, transactions, and the schema's revision checked before anything is read."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError

from registry.core.errors import IndexDamaged, IndexVersion, StorageError
from registry.core.summary import IndexRevision
from registry.disk import translated
from registry.index.opening import (
    COMPANIONS,
    REINDEX,
    Signature,
    open_for_reading,
    open_for_writing,
    signature,
)
from registry.index.schema import HEAD, metadata

_WRITE = "aorlta_write"
_DAMAGE = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""The first is for tables that are not what they should be."""
_TEMPORARY = "(a temporary one)"
_CUT_OFF = sqlite3.SQLITE_IOERR_SHORT_READ  # pages that the database must have are not in the file


class Database:
    """One SQLite file. It is created, and brought from an older schema to this program's, when it is first used.

    Args:
        path: the file. Empty for a database that nobody else sees and of which nothing stays, however this ends: SQLite
            keeps what memory does not hold in a file that has no name, where temporary files go.
        read_only: nothing is written there, and no file is made beside it.
        note: told, in a sentence, what a person should know of the file system.

    Raises (all methods):
        StorageError: the database cannot be opened, is locked for a minute, or is read-only and should be written.
        IndexDamaged: it is not a database, or not a sound one.
        IndexVersion: the schema is newer than this program, or older and read-only.
    """

    def __init__(self, path: str, *, read_only: bool = False, note: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._read_only = read_only
        self._note = note
        self._frozen: Signature | None = None
        self._opened: tuple[int, int] | None = None
        self._engine = create_engine(URL.create("sqlite", database=path), creator=self._connect)
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
            for end in COMPANIONS:  # before the database itself: SQLite would apply them to the next one
                with suppress(FileNotFoundError):
                    os.rename(self._path + end, kept + end)
            os.rename(self._path, kept)
        return kept

    def revision(self) -> IndexRevision:
        """The schema's revision, found and needed. Asking makes no database."""
        if not self.exists():
            return IndexRevision(None, HEAD)
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
        if self._opened is not None and self._opened != _identity(self._path):  # another has set it aside since
            self._engine.dispose()
            self._opened, self._ready = None, False
        if not self._ready and (found := self.revision().found) != HEAD:
            if self._read_only:
                raise IndexVersion(
                    "the index was written by another version of aorlta-reg, and is read-only here",
                    path=self._path,
                    found=f"revision {found or 'none'}",
                    expected=HEAD,
                    hint="If that was an older one, run `aorlta-reg db upgrade` where the registry is writable",
                )
            self.upgrade()
        self._ready = True

    def _connect(self) -> sqlite3.Connection:
        if not self._path:
            return sqlite3.connect("", isolation_level=None)
        if self._read_only:
            connection, self._frozen = open_for_reading(self._path)
        else:
            connection = open_for_writing(self._path, self._note)
        self._opened = _identity(self._path)
        return connection

    def _has_changed(self) -> bool:
        """Whether somebody has written to the database of which SQLite was told that nobody would."""
        return self._frozen is not None and self._frozen != signature(self._path)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        if self._read_only and write:
            hint = "Run it as a user who may write there, or where the file system is mounted for writing"
            raise StorageError("the registry is read-only here", path=self._path, hint=hint)
        if self._has_changed():
            self._engine.dispose()
            self._frozen = None
        try:
            with self._modes[write].begin() as connection:
                yield connection
        except DBAPIError as error:
            self._require_unchanged()
            code = getattr(error.orig, "sqlite_errorcode", 0)
            if code & 0xFF in _DAMAGE or code == _CUT_OFF:
                raise IndexDamaged(f"the index is damaged: {error.orig}", path=self._path, hint=REINDEX) from error
            raise StorageError(f"the index failed: {error.orig}", path=self._path or _TEMPORARY) from error
        self._require_unchanged()

    def _require_unchanged(self) -> None:
        if self._has_changed():
            raise StorageError("the index changed while it was read", path=self._path, hint="Run the command again")


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has a name now; None for none that can be seen."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _revision(connection: Connection) -> IndexRevision:
    known = connection.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'")).first()
    found = known and connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return IndexRevision(found or None, HEAD)


def _configure(connection: sqlite3.Connection, _record: Any) -> None:
    for setting in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}").close()


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
