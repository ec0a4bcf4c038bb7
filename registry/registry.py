"""The facade: a store, an index, and one method for every use case."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from registry.core import records, refs
from registry.core.digest import Digest
from registry.core.errors import NotFound, Refused, RegistryError, StorageError
from registry.core.refs import AliasName
from registry.disk import holds_safetensors, translated
from registry.operations import seal
from registry.operations.get import get
from registry.operations.opened import Opened, now
from registry.operations.resolve import resolve
from registry.operations.seal import read_seal

if TYPE_CHECKING:
    from registry.core.alias import AliasMove
    from registry.core.difference import Difference
    from registry.core.engines import Fitness
    from registry.core.lineage import Lineage
    from registry.core.model import ReadOptions
    from registry.core.search import Order
    from registry.core.summary import AdapterSummary, IndexRevision, ScorePoint, ScoreRunSummary
    from registry.index import Index
    from registry.operations.add import Added
    from registry.operations.alias import Moved
    from registry.operations.arrivals import Arrival, Intake
    from registry.operations.compare import Compared
    from registry.operations.export import Exported
    from registry.operations.gc import Collected
    from registry.operations.merge import Merged
    from registry.operations.reindex import Reindexed
    from registry.operations.remove import Removed
    from registry.operations.repair import Repaired
    from registry.operations.score import Scored
    from registry.operations.verify import Verified
    from registry.operations.view import Viewed


_ALL = 1 << 40
_WHERE_WRITABLE = "Run `aorlta-reg reindex` where the registry is writable"


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
        parent: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> Added:
        """Add the adapter in a checkpoint, or a PEFT adapter (its directory, or the tensor file in it). Doing it again
        changes nothing, and the bytes of a PEFT adapter are kept.

        Where `base` is a path to the base's weights, the adapter is compared with `served`, or with what the run
        directory itself keeps of what its engines were served for this iteration. The adapter is added in any case.
        Then `alias` is moved to it. `parent` refers to the adapter that its run started from, where the run's config
        does not say so; refused where it says otherwise.

        Raises:
            ConfigConflict: it is stored with a config that means another function.
            NotFound, Refused, IntegrityError, StorageError; InvalidReference, Ambiguous: of `parent`.
            Conflict: what the run started from descends from this adapter.
        """
        from registry.checkpoints import read_checkpoint  # noqa: PLC0415  what only writers need, readers do not load
        from registry.operations.add import add  # noqa: PLC0415
        from registry.operations.descent import parent_of, refuse_loop  # noqa: PLC0415
        from registry.operations.export import prepare  # noqa: PLC0415
        from registry.operations.settle import settle  # noqa: PLC0415

        base = options.get("base")
        weights = base if base is not None and holds_safetensors(base) else None
        self._check_evidence(weights, served)
        if alias is not None:
            refs.alias_name(alias)
        start = None if parent is None else parent_of(self._store, self.resolve(parent))
        read = read_checkpoint(os.fspath(checkpoint), parent=start, **options)
        unread: RegistryError | None = None
        if weights is not None:
            from registry.operations.fit import fitted  # noqa: PLC0415

            read, unread = fitted(read, weights)
        new = prepare(read)
        index = self._opened.mended_or_not()
        if index is not None:
            refuse_loop(self._store, index, new)
        result, exports = add(self._store, self._opened.index, new, now())
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

    def add_run(
        self, directory: str | os.PathLike[str], *, parent: str | None = None, **options: Unpack[ReadOptions]
    ) -> Iterator[Arrival]:
        """Add the checkpoints of the run in a directory, by step, and tell what became of each as it comes.

        `parent` and `options` are as in `add`. What was exported before with the same options is not read again, if a
        manifest lists its digest; else it is hashed. An adapter that was removed stays away. A checkpoint that is
        refused, or incomplete, stops no other.

        Raises:
            NotFound: there are none. Refused: they are of several kinds.
            InvalidReference, NotFound, Ambiguous: of `parent`. StorageError: of the registry itself.
        """
        from registry.operations.arrivals import take_all  # noqa: PLC0415

        return take_all(os.fspath(directory), self._intake(parent, options))

    def watch(
        self,
        directory: str | os.PathLike[str],
        *,
        every: float = 5.0,
        until_idle: float | None = None,
        parent: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Arrival]:
        """Add the checkpoints of a run as they come, as `add_run` does, each once it lacks nothing and its files have
        looked the same for `every` seconds. Watching again goes on where the registry is.

        Args:
            directory: the run's, which need not be there yet.
            every: seconds between two looks.
            until_idle: end once nothing has changed for so many seconds and nothing is pending; None for never.
            parent: as in `add`.
            options: likewise.

        Raises:
            Refused: it is no run but a checkpoint, or has checkpoints of several kinds, or such a time cannot be.
            InvalidReference, NotFound, Ambiguous: of `parent`. StorageError: the registry is read-only.
        """
        from registry.operations.watch import LONGEST, require_run, watch  # noqa: PLC0415

        if not 0 < every <= LONGEST or (until_idle is not None and not until_idle >= 0):
            limits = f"more than 0, at most {LONGEST:.0f}, and 0 or more seconds"
            raise Refused("no such time", key="every, until idle", found=f"{every}, {until_idle}", expected=limits)
        path = os.fspath(directory)
        require_run(path)
        self._opened.require_writable()
        intake = self._intake(parent, options)
        return watch(path, intake, every=every, until_idle=until_idle, note=self._opened.note)

    def _intake(self, parent: str | None, options: ReadOptions) -> Intake:
        from registry.operations.arrivals import Intake  # noqa: PLC0415

        start = None if parent is None else self.resolve(parent)
        named = None if start is None else str(start)
        return Intake(
            store=self._store,
            index=self._opened.mended_or_not,
            home=self.home,
            add=lambda path: self.add(path, parent=named, **options),
            options=options,
            parent=start,
        )

    def _check_evidence(self, weights: str | None, served: Sequence[str | os.PathLike[str]]) -> None:
        """Find out before anything is added whether served weights could be compared."""
        if served and weights is None:
            raise Refused("served weights can only be compared with the base's", hint="Give its directory as the base")
        for path in served:
            with translated(os.fspath(path)):
                os.stat(path)

    def get(
        self,
        reference: str,
        to: str | os.PathLike[str],
        *,
        force: bool = False,
        engine: str | None = None,
        base_name: str | None = None,
        max_rank: int | None = None,
    ) -> str:
        """Copy an adapter, verified, into the new directory `to`; returns its absolute path.

        Args:
            reference: the adapter.
            to: the directory.
            force: replace, in one step, a directory that holds an adapter's files and nothing else.
            engine: `vllm`, `sglang` or `peft`: refuse what that one would not load, or load as another function.
            base_name: what the copy's config is to call the base.
            max_rank: the highest rank that the engine was started to allow.

        Raises:
            InvalidReference, NotFound, Ambiguous, Refused, OutputExists, IntegrityError, StorageError.
        """
        self._refuse_inside(to)
        wish = None
        if engine is not None or base_name is not None or max_rank is not None:
            from registry.operations.serving import wanted  # noqa: PLC0415

            wish = wanted(engine, base_name, max_rank)
        return get(self._store, self.resolve(reference), os.fspath(to), force=force, wish=wish)

    def view(
        self,
        directory: str | os.PathLike[str],
        references: Iterable[str] = (),
        *,
        engine: str,
        run: str | None = None,
        newest: int | None = None,
        base_name: str | None = None,
        max_rank: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Viewed:
        """Let `directory` hold verified copies of these adapters and of no others, each in a directory named by its
        digest, as vLLM's file system resolver looks for them. Where neither `references` nor `run` is given, of all.

        Args:
            directory: a view, an empty directory, or a name for a new one.
            references: the adapters.
            engine: `vllm`, `sglang` or `peft`. What that one would not load as what it is, is left out.
            run: the adapters of a run too.
            newest: of the run, only so many of the highest iterations; or of all, only so many that came last.
            base_name: what the copies' configs are to call the base, which must be one.
            max_rank: the highest rank that the engine was started to allow.
            progress: called with the bytes of the adapters done since the last call, and those of all.

        Raises:
            NotFound: also where there is nothing to show: the view stays as it was.
            InvalidReference, Ambiguous, Refused, OutputExists, Conflict, StorageError.
        """
        from registry.operations.serving import Wanted, wanted  # noqa: PLC0415
        from registry.operations.view import view  # noqa: PLC0415

        self._refuse_inside(directory)
        wish = wanted(engine, base_name, max_rank) or Wanted()
        chosen = [self.resolve(reference) for reference in references]
        if newest is not None and (newest < 1 or (chosen and run is None)):
            raise Refused("so many of a run, or of all", key="newest", found=newest, expected="1 or more, and no REF")
        if run is not None or not chosen:
            order = "newest" if run is None or newest is None else "iteration"
            found = self.find(run=run, sort=order, limit=_ALL if newest is None else newest)
            if not found:
                raise NotFound("no adapter to show", key=run or self.home)
            chosen += [adapter.digest for adapter in found]
        return view(self._store, os.fspath(directory), chosen, wish, progress)

    def fitness(self, reference: str) -> tuple[Fitness, ...]:
        """What each engine that is known here would make of an adapter. Its header and config are read, not all bytes.

        Raises:
            InvalidReference, NotFound, Ambiguous, IntegrityError, StorageError.
        """
        from registry.operations.serving import fitnesses  # noqa: PLC0415

        return fitnesses(self._store, self.resolve(reference))

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
        seal.verify(self._store, digest)
        return self._store.directory(digest)

    def resolve(self, reference: str) -> Digest:
        """The digest that a reference names. Only an alias and `RUN@ITER` need the index.

        Raises:
            InvalidReference, NotFound, Ambiguous, StorageError.
        """
        return resolve(self._store, reference, self._opened.mended_if_any)

    def show(self, reference: str) -> AdapterSummary:
        """What is known about one adapter. A gap in the index is filled from the store's records first; a comparison or
        score run whose record is damaged is noted, and left out of that.

        Raises:
            InvalidReference, NotFound, Ambiguous, IntegrityError, StorageError.
        """
        digest, index = self.resolve(reference), self._opened.mended()
        found = index.adapter(digest)
        stated = list(read_seal(self._store, digest).exports)
        for kind in (records.COMPARISON, records.SCORE):
            stated += self._store.records(digest, kind, self._note_left_out)
        lacking = [record for record in stated if found is None or record.digest not in found.records]
        if lacking and self._opened.read_only:
            self._opened.note(f"the index lacks some of {digest.short}, and the registry is read-only here")
            if found is None:
                raise NotFound("is stored, and the index does not know it", key=str(digest), hint=_WHERE_WRITABLE)
        elif lacking:
            from registry.operations.settle import fill  # noqa: PLC0415

            if fill(self._store, index, lacking, self._note_left_out):
                self._opened.note(
                    f"the index lacked some of {digest.short}; `aorlta-reg reindex` finds what else it lacks"
                )
                found = index.adapter(digest)
        assert found is not None  # noqa: S101  a stored adapter has at least one export
        return found

    def _note_left_out(self, error: RegistryError) -> None:
        self._opened.note(f"left out: {error}. `aorlta-reg verify` tells all that is damaged")

    def newest(self, limit: int) -> list[AdapterSummary]:
        """The adapters that were first exported last, newest first.

        Raises:
            StorageError.
        """
        index = self._opened.mended_if_any()
        return [] if index is None else index.newest(limit)

    def find(
        self,
        *,
        run: str | None = None,
        iterations: int | tuple[int | None, int | None] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        tensors: str | None = None,
        base: str | None = None,
        r: int | None = None,
        alpha: float | None = None,
        verdict: str | None = None,
        alias: str | None = None,
        scores: Iterable[str] = (),
        since: str | None = None,
        until: str | None = None,
        sort: str | Order = "newest",
        limit: int = 50,
    ) -> list[AdapterSummary]:
        """The first adapters that meet all that is asked for. A name that is not known is noted, and finds nothing.

        `run`, `iterations`, `checkpoint` and `base` are of one and the same export.

        Args:
            run: its name.
            iterations: one, or the first and the last of them, of which either may be None.
            checkpoint: its digest, its directory, or its tensor file.
            tensors: the tensor digest.
            base: its name, as recorded.
            r: as in the adapter's settings.
            alpha: likewise.
            verdict: the verdict that `list` shows; `none` for what was never compared.
            alias: an alias that names it now.
            scores: bounds on its scores, as `pass@1>0.4`.
            since: when it was first exported at the earliest: an ISO 8601 date or date and time, UTC where it has no
                zone.
            until: the same for the end, which does not count itself; but a date counts as a whole.
            sort: `newest`, `oldest`, `iteration` (the highest first) or `score:NAME` (the highest first); or such an
                order, reversed. The last two list only adapters that have one.
            limit: how many at most.

        Raises:
            Refused, InvalidReference: what is asked for is none of these.
            NotFound: there is no such checkpoint.
            StorageError.
        """
        from registry.core import search  # noqa: PLC0415
        from registry.operations.find import checkpoint_digest  # noqa: PLC0415

        criteria = search.Criteria(
            run=None if run is None else search.name(run),
            iterations=None if iterations is None else search.iteration_range(iterations),
            checkpoint=None if checkpoint is None else checkpoint_digest(os.fspath(checkpoint)),
            base=None if base is None else search.name(base),
            tensors=None if tensors is None else Digest.parse(tensors),
            r=None if r is None else search.rank(r),
            alpha=None if alpha is None else search.alpha(alpha),
            verdict=None if verdict is None else search.verdict(verdict),
            alias=None if alias is None else refs.alias_name(alias).name,
            scores=tuple(map(search.score_bound, scores)),
            since=None if since is None else search.since(since),
            until=None if until is None else search.until(until),
        )
        order = sort if isinstance(sort, search.Order) else search.order(sort)
        index = self._opened.mended_if_any()
        if index is None:
            return []
        found, unknown = index.find(criteria, order, limit)
        for clause in unknown:
            self._opened.note(clause)
        return found

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
            expected = Expectation(None if expect == refs.NO_ADAPTER else self._expected(expect))
        return move(self._store, self._opened.mended(), alias, to, now=now(), who=_who(), expected=expected)

    def _expected(self, reference: str) -> Digest:
        """What an alias is expected to name: by its digest also an adapter that was removed."""
        parsed = refs.parse(reference)
        return parsed if isinstance(parsed, Digest) else self.resolve(reference)

    def remove(self, reference: str, *, force: bool = False, reason: str | None = None) -> Removed:
        """Delete an adapter. Its records stay, with one more of this, and its checkpoint can be added again.

        Args:
            reference: the adapter.
            force: remove it even though somebody relies on it; the record names them. An alias that named it stays.
            reason: why, for the record.

        Raises:
            Conflict: an alias names it, a score run used it, or an adapter that is there was trained from it.
            InvalidReference, NotFound, Ambiguous, IntegrityError, StorageError.
        """
        from registry.operations.remove import remove  # noqa: PLC0415

        digest, index = self.resolve(reference), self._opened.mended()
        return remove(self._store, index, digest, now=now(), who=_who(), reason=reason, force=force)

    def verify(
        self,
        *references: str,
        share: float | None = None,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Verified:
        """Hold every byte, header, config and record of these adapters, or of all, and the index against what they must
        be. Nothing is changed; the result tells all that is wrong.

        Args:
            references: the adapters; none for all.
            share: only a random share of all is looked at, 0 < share <= 1; at least one adapter.
            seed: of that choice. The result says which it was.
            progress: called with the bytes read since the last call, and their total.

        Raises:
            InvalidReference, NotFound, Ambiguous: of a reference.
            Refused: a share that is none, or of adapters that were named.
            StorageError: the store cannot even be listed.
        """
        from registry.operations.verify import verify  # noqa: PLC0415

        if share is not None and (references or not 0 < share <= 1):
            raise Refused("no share of all adapters", found=f"{share:g}", expected="more than 0, at most 1, and no REF")
        only = [self.resolve(reference) for reference in references] if references else None
        index: Index | RegistryError | None
        try:
            index = self._opened.mended_if_any()
        except StorageError as error:
            index = error
        return verify(self._store, index, only, now=now(), share=share, seed=seed, progress=progress)

    def repair(self, found: Verified) -> Repaired:
        """Mend what `verify` found, as far as records and checkpoints tell for certain what it was. Verify again after.

        A damaged copy that is replaced is kept in quarantine.

        Raises:
            StorageError: the registry cannot be written, or its index cannot be read.
        """
        from registry.operations.repair import repair  # noqa: PLC0415

        self._opened.require_writable()
        return repair(self._store, self._opened.mended(), found.findings)

    def gc(
        self,
        *,
        keep_last: int | None = None,
        older_than: str | None = None,
        keep_aliased: bool = True,
        keep_scored: bool = True,
        dry_run: bool = False,
    ) -> Collected:
        """Remove the adapters that nothing keeps. Their records stay, and their checkpoints can be added again.

        Args:
            keep_last: keep the last so many of each run, and whatever has an export of no run.
            older_than: keep what was first exported since: hours, days or weeks ago, as `12h`, `30d`, `2w`.
            keep_aliased: keep what an alias names.
            keep_scored: keep what a score run used.
            dry_run: only tell what would go.

        Raises:
            Refused: neither `keep_last` nor `older_than` says what may go, or no such number or age.
            StorageError.
        """
        from registry.core.retention import Policy, age, ago  # noqa: PLC0415
        from registry.operations.gc import gc  # noqa: PLC0415

        if (keep_last is None and older_than is None) or (keep_last is not None and keep_last < 0):
            raise Refused("say what may go", expected="--keep-last N or --older-than AGE", key="gc")
        before = None if older_than is None else ago(now(), age(older_than))
        policy = Policy(keep_last, before, keep_aliased, keep_scored)
        if not dry_run:
            self._opened.require_writable()
        index = self._opened.mended()
        return gc(self._store, index, policy, now=now(), who=_who(), dry_run=dry_run)

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

    def add_score(self, directory: str | os.PathLike[str], *, adapter: str | None = None) -> Scored:
        """Link the result of a score run (its directory, or the run_result.json in it) to the adapter it used.

        Which one that is, the score run's files say, or `adapter`, a reference; all that say it must agree. Adding a
        result again changes nothing. The scores of a run that stopped early are kept as partial ones.

        Raises:
            InvalidReference, NotFound, Ambiguous, Refused, IntegrityError, StorageError.
        """
        from registry.operations.score import score  # noqa: PLC0415
        from registry.operations.score_adapter import adapter_of  # noqa: PLC0415
        from registry.operations.score_files import read_score_run  # noqa: PLC0415

        files = read_score_run(os.fspath(directory))
        given = None if adapter is None else self.resolve(adapter)
        used, named_by = adapter_of(
            self._store, files.result.path, files.named, given, index=self._opened.mended_if_any
        )
        derive = self._opened.mended_or_not() is not None
        return score(self._store, self._opened.index, used, files, named_by, now=now(), who=_who(), derive=derive)

    def score_runs(self, reference: str | None = None, limit: int = 50) -> list[ScoreRunSummary]:
        """The score runs that were added last, of one adapter or of all, newest first.

        Raises:
            InvalidReference, NotFound, Ambiguous, StorageError.
        """
        of = None if reference is None else self.resolve(reference)
        index = self._opened.mended_if_any()
        return [] if index is None else index.score_runs(of, limit)

    def run_scores(self, run: str, metric: str) -> list[ScorePoint]:
        """The scores of one metric that stand for what a run exported, by iteration; none of a run that stopped early.

        Raises:
            NotFound: no such run is known, or no such score of its adapters; those that there are are named.
            StorageError.
        """
        from registry.operations.score import points  # noqa: PLC0415

        return points(self._opened.mended_if_any(), run, metric)

    def lineage(
        self,
        target: str | os.PathLike[str],
        *,
        up: bool = True,
        down: bool = True,
        depth: int | None = None,
        limit: int = 50,
    ) -> Lineage:
        """What an adapter, a checkpoint or a run came from, and what came of it, as a graph without loops.

        Args:
            target: a reference, also to an adapter that was removed; a checkpoint's digest or path; or a run's name.
                `adapter:REF`, `checkpoint:DIGEST|PATH` and `run:NAME` tell which of them is meant.
            up: towards what it came from.
            down: towards what came of it. With both, what else its own run exported is shown too.
            depth: how many steps from run to run; None for all.
            limit: how many exports of one run are listed. What others started from always is.

        Raises:
            InvalidReference, NotFound, Ambiguous, IntegrityError, StorageError.
        """
        from registry.operations.lineage import lineage  # noqa: PLC0415

        index = self._opened.mended_if_any()
        return lineage(self._store, index, os.fspath(target), up=up, down=down, depth=depth, limit=limit)

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
        if self._opened.index.is_stale():
            self._opened.note("the index was made by an older version: `aorlta-reg reindex` derives what it lacks")
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


def checkpoints_in(path: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """The checkpoints of a run by step, each as its directory and the size in bytes of its tensors' file; none where a
    path is no run.

    Raises:
        Refused: they are of several kinds.
    """
    from registry.checkpoints import run_checkpoints, tensor_size  # noqa: PLC0415

    return [(found.path, tensor_size(found.path)) for found in run_checkpoints(os.fspath(path))]


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path is itself a checkpoint, though there may be a run's checkpoints below it."""
    from registry.checkpoints import is_checkpoint as found  # noqa: PLC0415

    return found(os.fspath(path))


def _who() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # as in containers that run under any number
        user = f"uid-{os.geteuid()}"
    return f"{user}@{socket.gethostname()}"


def _warn(note: str) -> None:
    import logging  # noqa: PLC0415

    logging.getLogger("registry").warning(note)
