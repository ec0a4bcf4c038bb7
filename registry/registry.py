"""The facade: a store, an index, and one method for every use case."""

from __future__ import annotations

import datetime as dt
import importlib
import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from registry.core.digest import Digest
from registry.core.errors import Refused
from registry.core.model import ReadOptions
from registry.core.summary import AdapterSummary, IndexRevision
from registry.disk import make_directories
from registry.operations.get import get
from registry.operations.resolve import resolve
from registry.operations.seal import read_seal, verify
from registry.store import LocalStore

if TYPE_CHECKING:
    from registry.index import Database, Index
    from registry.operations.add import Added
    from registry.operations.export import Exported

INDEX_FILE = "index.sqlite"


class Registry:
    """A registry in the directory `home`, which is made when something is first added.

    The index is opened when a method first needs it, so that finding an adapter by digest never loads SQLAlchemy.
    """

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.home = os.path.abspath(os.fspath(home))
        self._store = LocalStore(self.home)

    @cached_property
    def _database(self) -> Database:
        from registry.index import Database  # noqa: PLC0415  SQLAlchemy takes longer to import than `get` runs

        make_directories(self.home)
        return Database(os.path.join(self.home, INDEX_FILE))

    @cached_property
    def _index(self) -> Index:
        from registry.index import Index  # noqa: PLC0415

        return Index(self._database)

    def add(self, checkpoint: str | os.PathLike[str], **options: Unpack[ReadOptions]) -> Added:
        """Add the adapter in a checkpoint (its directory, or the tensor file in it). Doing it again changes nothing.

        Raises:
            NotFound, Refused, IntegrityError, StorageError.
        """
        from registry.checkpoints import read_checkpoint  # noqa: PLC0415  what only writers need, readers do not load
        from registry.operations.add import add  # noqa: PLC0415

        warm = threading.Thread(target=importlib.import_module, args=("registry.index",))
        warm.start()  # its import takes as long as hashing 300 MB, which leaves the interpreter free meanwhile
        result, exports = add(self._store, read_checkpoint(os.fspath(checkpoint), **options), _now())
        self._index.add(exports)
        return result

    def get(self, reference: str, to: str | os.PathLike[str]) -> str:
        """Copy an adapter, verified, into the new directory `to`; returns its absolute path.

        Raises:
            InvalidReference, NotFound, Ambiguous, OutputExists, IntegrityError, StorageError.
        """
        self._refuse_inside(to)
        return get(self._store, self.resolve(reference), os.fspath(to))

    def path(self, reference: str) -> str:
        """The directory of an adapter inside the store, after its bytes were verified. It is read-only: do not write.

        Raises:
            InvalidReference, NotFound, Ambiguous, IntegrityError, StorageError.
        """
        digest = self.resolve(reference)
        verify(self._store, digest)
        return self._store.directory(digest)

    def resolve(self, reference: str) -> Digest:
        """The digest that a reference (digest, `sha256:<hex>`, unique prefix) names.

        Raises:
            InvalidReference, NotFound, Ambiguous.
        """
        return resolve(self._store, reference)

    def show(self, reference: str) -> AdapterSummary:
        """What is known about one adapter. A gap in the index is filled from the store's records first.

        Raises:
            InvalidReference, NotFound, Ambiguous, IntegrityError, StorageError.
        """
        digest = self.resolve(reference)
        found = self._index.adapter(digest)
        if found is None:
            self._index.add(read_seal(self._store, digest).exports)
            found = self._index.adapter(digest)
        assert found is not None  # noqa: S101  a stored adapter has at least one export
        return found

    def newest(self, limit: int) -> list[AdapterSummary]:
        """The adapters that were first exported last, newest first.

        Raises:
            StorageError.
        """
        return self._index.newest(limit) if os.path.lexists(self.home) else []

    def _refuse_inside(self, to: str | os.PathLike[str]) -> None:
        target, home = os.path.realpath(os.fspath(to)), os.path.realpath(self.home)
        if os.path.commonpath((target, home)) == home:
            raise Refused("lies inside the registry", path=target, hint="Name a directory outside it")

    def index_revision(self) -> IndexRevision:
        """Which schema revision the index has and which one this program needs.

        Raises:
            StorageError.
        """
        return self._database.revision()

    def upgrade_index(self) -> IndexRevision:
        """Bring the index's schema up to date, creating it where there is none; returns what it was before.

        Raises:
            IndexVersion: it was made by a newer version of this program.
        """
        before = self._database.revision()
        self._database.upgrade()
        return before


def export_checkpoint(
    checkpoint: str | os.PathLike[str], out: str | os.PathLike[str], **options: Unpack[ReadOptions]
) -> Exported:
    """Export a checkpoint into the new directory `out`, without a registry.

    Raises:
        NotFound, Refused (OutputExists among them), IntegrityError, StorageError.
    """
    from registry.checkpoints import read_checkpoint  # noqa: PLC0415
    from registry.operations.export import export_to  # noqa: PLC0415

    return export_to(lambda: read_checkpoint(os.fspath(checkpoint), **options), os.fspath(out), _now())


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
