"""The facade: a store, an index, and one method for every use case."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import NotFound, Refused, RegistryError
from registry.core.model import ReadOptions
from registry.core.summary import AdapterSummary, IndexRevision
from registry.disk import holds_safetensors, make_directories
from registry.operations.get import get
from registry.operations.resolve import resolve
from registry.operations.seal import read_seal, verify
from registry.store import LocalStore

if TYPE_CHECKING:
    from registry.core.difference import Difference
    from registry.index import Database, Index
    from registry.operations.add import Added
    from registry.operations.compare import Compared
    from registry.operations.export import Exported
    from registry.operations.merge import Merged

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

    def add(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        served: Sequence[str | os.PathLike[str]] = (),
        **options: Unpack[ReadOptions],
    ) -> Added:
        """Add the adapter in a checkpoint (its directory, or the tensor file in it). Doing it again changes nothing.

        Where `base` is a path to the base's weights, the adapter is compared with `served`, or with what the run
        directory itself keeps of what its engines were served for this iteration. The adapter is added in any case.

        Raises:
            NotFound, Refused, IntegrityError, StorageError.
        """
        from registry.checkpoints import read_checkpoint  # noqa: PLC0415  what only writers need, readers do not load
        from registry.operations.add import add  # noqa: PLC0415

        base = options.get("base")
        weights = base if base is not None and holds_safetensors(base) else None
        self._check_evidence(weights, served)
        read = read_checkpoint(os.fspath(checkpoint), **options)
        result, exports = add(self._store, read, _now())
        self._index.add(exports)
        evidence = served or ((read.served,) if read.served else ())
        if weights is None or not evidence:
            return result
        try:
            return replace(result, comparison=self.compare(str(result.digest), weights, evidence).comparison)
        except RegistryError as error:  # the adapter is there, and its digest is due to the caller
            return replace(result, comparison_error=error)

    def _check_evidence(self, weights: str | None, served: Sequence[str | os.PathLike[str]]) -> None:
        """Find out before anything is added whether served weights could be compared."""
        if served and weights is None:
            raise Refused("served weights can only be compared with the base's", hint="Give its directory as the base")
        for path in served:
            if not os.path.exists(path):
                raise NotFound("no such file or directory", path=path)

    def get(self, reference: str, to: str | os.PathLike[str]) -> str:
        """Copy an adapter, verified, into the new directory `to`; returns its absolute path.

        Raises:
            InvalidReference, NotFound, Ambiguous, OutputExists, IntegrityError, StorageError.
        """
        self._refuse_inside(to)
        return get(self._store, self.resolve(reference), os.fspath(to))

    def merge(
        self,
        reference: str,
        base: str | os.PathLike[str],
        to: str | os.PathLike[str],
        recipe: str = "fp32",
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Merged:
        """Merge an adapter, verified, into a base model and publish the result as the new directory `to`. Needs torch.

        Raises:
            InvalidReference, NotFound, Ambiguous, Refused, IntegrityError, StorageError.
        """
        from registry.operations.merge import merge  # noqa: PLC0415

        self._refuse_inside(to)
        digest = self.resolve(reference)
        return merge(self._store, digest, os.fspath(base), os.fspath(to), recipe, now=_now(), progress=progress)

    def compare(
        self,
        reference: str,
        base: str | os.PathLike[str],
        served: Sequence[str | os.PathLike[str]],
        recipe: str = "auto",
        *,
        workers: int | None = None,
        device: str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> Compared:
        """Hold base + adapter against what inference engines were served, and keep the result. Needs torch.

        Args:
            reference: the adapter, which is verified first.
            base: the base's safetensors file or directory.
            served: files, or directories of one iteration: served tensors, or listings of their digests.
            recipe: the arithmetic of the merge; `auto` recognises it on a few tensors.
            workers: threads; one for each core by default. The result does not depend on it.
            device: where to calculate: `cpu` or `cuda` (AMD's GPUs too). The verdict is about that device.
            progress: called with the bytes of base compared since the last call, and their total.

        Raises:
            InvalidReference, NotFound, Ambiguous, Refused, IntegrityError, StorageError.
        """
        from registry.operations.compare import compare  # noqa: PLC0415

        digest, paths = self.resolve(reference), [os.fspath(path) for path in served]
        compared = compare(
            self._store,
            digest,
            os.fspath(base),
            paths,
            recipe=recipe,
            now=_now(),
            workers=workers,
            device=device,
            progress=progress,
        )
        self._index.add([*read_seal(self._store, digest).exports, compared.record])
        return compared

    def diff(self, first: str, second: str) -> Difference:
        """How far two adapters are apart, as functions and as tensors. Needs torch.

        Raises:
            InvalidReference, NotFound, Ambiguous, Refused, IntegrityError, StorageError.
        """
        from registry.operations.diff import diff  # noqa: PLC0415

        return diff(self._store, self.resolve(first), self.resolve(second))

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
        stated = [*read_seal(self._store, digest).exports, *self._store.records(digest, records.COMPARISON)]
        if found is None or not {record.digest for record in stated} <= found.records:
            self._index.add(stated)
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
