"""The facade: a store, an index, and one method for every use case."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from registry.core import records, refs
from registry.core.digest import Digest
from registry.core.errors import NotFound, Refused, RegistryError
from registry.core.model import ReadOptions
from registry.core.refs import AliasName
from registry.core.summary import AdapterSummary, IndexRevision
from registry.disk import holds_safetensors
from registry.operations.get import get
from registry.operations.opened import Opened, now
from registry.operations.resolve import resolve
from registry.operations.seal import read_seal, verify

if TYPE_CHECKING:
    from registry.core.alias import AliasMove
    from registry.core.difference import Difference
    from registry.operations.add import Added
    from registry.operations.alias import Moved
    from registry.operations.compare import Compared
    from registry.operations.export import Exported
    from registry.operations.merge import Merged
    from registry.operations.reindex import Reindexed


class Registry:
    """A registry in the directory `home`, which is made when something is first added.

    The index is opened when a method first needs it, so that finding an adapter by digest never loads SQLAlchemy. Where
    it lacks what the store holds, because a process was killed or the index was lost, it is mended first; what a person
    should know of that goes to `note`, which by default is a warning of the logger `registry`.

    Wherever an adapter is referred to, that is a digest, `sha256:<hex>`, a unique prefix, an alias, `RUN@ITER`, or
    `RUN@latest`.
    """

    def __init__(self, home: str | os.PathLike[str], *, note: Callable[[str], None] | None = None) -> None:
        self.home = os.path.abspath(os.fspath(home))
        self._opened = Opened(self.home, note or _warn)
        self._store = self._opened.store

    def add(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        served: Sequence[str | os.PathLike[str]] = (),
        alias: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> Added:
        """Add the adapter in a checkpoint, or a PEFT adapter (its directory, or the tensor file in it). Doing it again
        changes nothing, and the bytes of a PEFT adapter are kept.

        Where `base` is a path to the base's weights, the adapter is compared with `served`, or with what the run
        directory itself keeps of what its engines were served for this iteration. The adapter is added in any case.
        Then `alias` is moved to it.

        Raises:
            ConfigConflict: it is stored with a config that means another function.
            NotFound, Refused, IntegrityError, StorageError.
        """
        from registry.checkpoints import read_checkpoint  # noqa: PLC0415  what only writers need, readers do not load
        from registry.operations.add import add  # noqa: PLC0415
        from registry.operations.settle import settle  # noqa: PLC0415

        base = options.get("base")
        weights = base if base is not None and holds_safetensors(base) else None
        self._check_evidence(weights, served)
        if alias is not None:
            refs.alias_name(alias)
        read = read_checkpoint(os.fspath(checkpoint), **options)
        unread: RegistryError | None = None
        if weights is not None:
            from registry.operations.fit import fitted  # noqa: PLC0415

            read, unread = fitted(read, weights)
        index = self._opened.mended_or_not()
        result, exports = add(self._store, read, now())
        if index is not None:
            settle(self._store, index, exports)
        if alias is not None:
            self.set_alias(alias, str(result.digest))
        evidence = served or ((read.served,) if read.served else ())
        if weights is None or not evidence:
            return replace(result, comparison_error=unread)
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
        return merge(self._store, digest, os.fspath(base), os.fspath(to), recipe, now=now(), progress=progress)

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
        from registry.operations.settle import settle  # noqa: PLC0415

        digest, paths = self.resolve(reference), [os.fspath(path) for path in served]
        index = self._opened.mended_or_not()
        compared = compare(
            self._store,
            digest,
            os.fspath(base),
            paths,
            recipe=recipe,
            now=now(),
            workers=workers,
            device=device,
            progress=progress,
        )
        if index is not None:
            settle(self._store, index, [*read_seal(self._store, digest).exports, compared.record])
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
        """The digest that a reference names. Only an alias and `RUN@ITER` need the index.

        Raises:
            InvalidReference, NotFound, Ambiguous, StorageError.
        """
        return resolve(self._store, reference, self._opened.mended_if_any)

    def show(self, reference: str) -> AdapterSummary:
        """What is known about one adapter. A gap in the index is filled from the store's records first.

        Raises:
            InvalidReference, NotFound, Ambiguous, IntegrityError, StorageError.
        """
        from registry.operations.settle import settle  # noqa: PLC0415

        digest, index = self.resolve(reference), self._opened.mended()
        found = index.adapter(digest)
        stated = list(read_seal(self._store, digest).exports)
        for kind in (records.COMPARISON, records.SCORE):
            stated += self._store.records(digest, kind)
        if found is None or not {record.digest for record in stated} <= found.records:
            self._opened.note(f"the index lacked some of {digest.short}; `aorlta-reg reindex` finds what else it lacks")
            settle(self._store, index, stated)
            found = index.adapter(digest)
        assert found is not None  # noqa: S101  a stored adapter has at least one export
        return found

    def newest(self, limit: int) -> list[AdapterSummary]:
        """The adapters that were first exported last, newest first.

        Raises:
            StorageError.
        """
        index = self._opened.mended_if_any()
        return [] if index is None else index.newest(limit)

    def set_alias(self, name: str, reference: str, *, expect: str | None = None) -> Moved:
        """Let an alias name an adapter. With `expect`, a reference or `none`, only if that is what it names now.

        Raises:
            InvalidReference, NotFound, Ambiguous: of a reference.
            Refused: this can be no alias, or differs from another one in case only.
            Conflict: it does not name what was expected.
            StorageError.
        """
        alias = refs.alias_name(name)
        return self._move(alias, self.resolve(reference), expect)

    def remove_alias(self, name: str, *, expect: str | None = None) -> Moved:
        """Let an alias name no adapter any more. Its history stays.

        Raises:
            NotFound: there is no such alias; otherwise as `set_alias`.
        """
        return self._move(refs.alias_name(name), None, expect)

    def _move(self, alias: AliasName, to: Digest | None, expect: str | None) -> Moved:
        from registry.operations.alias import Expectation, move  # noqa: PLC0415

        expected = None
        if expect is not None:
            expected = Expectation(None if expect == refs.NO_ADAPTER else self.resolve(expect))
        return move(self._store, self._opened.mended(), alias, to, now=now(), who=_who(), expected=expected)

    def aliases(self) -> list[AliasMove]:
        """Every alias that names an adapter, sorted, each as its last move.

        Raises:
            StorageError.
        """
        index = self._opened.mended_if_any()
        return [] if index is None else index.aliases()

    def alias_history(self, name: str) -> list[AliasMove]:
        """All moves of an alias, oldest first; also of one that was removed.

        Raises:
            NotFound: there was never such an alias.
            Refused, StorageError.
        """
        index, alias = self._opened.mended_if_any(), refs.alias_name(name)
        moves = [] if index is None else index.alias_history(alias)
        if not moves:
            raise NotFound("there was never an alias of this name", key=name)
        return moves

    def reindex(self, progress: Callable[[int, int], None] | None = None) -> Reindexed:
        """Derive the whole index from the store's records. Where one is damaged, the result says so.

        Raises:
            StorageError: the index cannot be written; it stays what it was.
        """
        from registry.operations.reindex import reindex  # noqa: PLC0415

        return reindex(self._store, self._opened.index, progress)

    def _refuse_inside(self, to: str | os.PathLike[str]) -> None:
        target, home = os.path.realpath(os.fspath(to)), os.path.realpath(self.home)
        if os.path.commonpath((target, home)) == home:
            raise Refused("lies inside the registry", path=target, hint="Name a directory outside it")

    def index_revision(self) -> IndexRevision:
        """Which schema revision the index has and which one this program needs.

        Raises:
            StorageError.
        """
        return self._opened.database.revision()

    def upgrade_index(self) -> IndexRevision:
        """Bring the index's schema up to date, creating it where there is none; returns what it was before.

        Raises:
            IndexVersion: it was made by a newer version of this program.
        """
        before = self._opened.database.revision()
        self._opened.database.upgrade()
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

    return export_to(lambda: read_checkpoint(os.fspath(checkpoint), **options), os.fspath(out), now())


def _who() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in containers that run under any number
        user = f"uid-{os.geteuid()}"
    return f"{user}@{socket.gethostname()}"


def _warn(note: str) -> None:
    import logging  # noqa: PLC0415

    logging.getLogger("registry").warning(note)
