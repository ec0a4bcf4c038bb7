"""A registry's store and index, each opened when it is first needed: so finding an adapter by its digest never loads
SQLAlchemy."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from registry.core.errors import IndexMissing, NotFound, StorageError
from registry.core.times import text_of
from registry.disk import is_writable, translated
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
        self._index_path = os.path.join(home, _INDEX_FILE)

    @property
    def read_only(self) -> bool:
        """Whether there is a registry and this process may not write to it."""
        return self._unwritable is not None

    @cached_property
    def _unwritable(self) -> str | None:
        there = (path for path in (self._home, self._index_path) if os.path.exists(path))
        return next((path for path in there if not is_writable(path)), None)

    @cached_property
    def database(self) -> Database:
        """The index's database, as it is."""
        from registry.index import Database  # noqa: PLC0415  SQLAlchemy takes longer to import than `get` runs

        return Database(self._index_path, read_only=self.read_only, note=self.note)

    @cached_property
    def index(self) -> Index:
        """The index, as it is."""
        from registry.index import Index  # noqa: PLC0415

        return Index(self.database)

    def mended(self) -> Index:
        """The index, once it has what the store holds. Where nothing can be written, as it is: it may lack something.

        Raises:
            IndexMissing: it knows nothing, and the store has too much to be read in passing, or nothing can be written.
        """
        from registry.operations.mend import look, mend  # noqa: PLC0415

        if self.read_only:
            look(self.store, self.index, self.note)
        else:
            mend(self.store, self.index, now(), self.note)
        return self.index

    def mended_if_any(self) -> Index | None:
        """For questions: None where there is no registry, since asking makes none."""
        try:
            with translated(self._home):  # where one may not even look, there may well be a registry
                os.lstat(self._home)
        except NotFound:
            return None
        index = self.mended()
        return index if self.database.exists() or not self.read_only else None

    def mended_or_not(self) -> Index | None:
        """For updates: None where the index is missing. What is stored meanwhile stays announced until it is there.

        Raises:
            StorageError: the registry is read-only.
        """
        self.require_writable()
        try:
            return self.mended()
        except IndexMissing as error:
            self.note(str(error))
            return None

    def require_writable(self) -> None:
        """Find out before anything is done whether this process may write here.

        Raises:
            StorageError.
        """
        if self.read_only:
            hint = "Run it as a user who may write there, or where the file system is mounted for writing"
            raise StorageError("the registry is read-only here", path=self._unwritable, hint=hint)


def now() -> str:
    """UTC, ISO 8601, in microseconds: as text it sorts as it does in time."""
    return text_of(dt.datetime.now(dt.UTC))
