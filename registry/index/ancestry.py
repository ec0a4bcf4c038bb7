"""The walk behind lineage: from an adapter, a checkpoint or a run to what it came from and what came of it.

It goes generation by generation, from run to run, with a few queries for a whole generation. It ends whatever the rows
say: it goes on from no stretch of a run twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from registry.core.lineage import Edge, Kind, LeftOut, Lineage, Link, Start, digest_key, lineage
from registry.index import kinship
from registry.index.portraits import Drawn
from registry.index.stretches import Stretches, resumable_of, starts_of

TOTAL = 2000
"""Exports that one lineage lists, however many descendants there are."""


def lineage_of(
    connection: Connection, start: Start, *, up: bool, down: bool, depth: int | None, limit: int
) -> Lineage | None:
    """The lineage of what was asked for, or None if it is not known.

    Args:
        connection: in a read transaction.
        start: what was asked for.
        up: towards what it came from.
        down: towards what came of it. With both, the other exports of its own runs are listed too.
        depth: how many steps from run to run; None for all.
        limit: how many exports of one run are listed, in the order of iterations. What others started from always is.
    """
    walk = _Walk(connection, limit)
    generations = math.inf if depth is None else depth
    origin = walk.origin(start)
    if origin is None:
        return None
    if up:
        walk.climb(origin, generations)
        if down and start.kind is not Kind.RUN:
            walk.list_siblings()
    if down:
        walk.descend(origin, generations)
    return walk.finish(origin)


def stated_above(
    connection: Connection, *, warm_start: str | None, resumed_from: str | None, run: str | None, checkpoint: str
) -> tuple[set[str], set[str]]:
    """The hex digests that an export would descend from.

    Args:
        connection: in a read transaction.
        warm_start: what it states, as the hex digits of a digest or a tensor digest that need not be known.
        resumed_from: the same of a checkpoint.
        run: the run that it is of; being resumed from a checkpoint of its own is no descent.
        checkpoint: the checkpoint that is exported.

    Returns:
        The adapters and checkpoints that the stated starts are or descend from, with what the runs among them state;
        and the same of what the checkpoint descends from already, by its earlier exports.
    """
    walk = _Walk(connection, 0)
    adapters = starts_of(connection, [warm_start] if warm_start else ())
    resumes = resumable_of(connection, [resumed_from] if resumed_from else ()).get(resumed_from or "", {})
    checkpoints = () if run in resumes else (row.id for row in resumes.values())
    ids = frozenset(each for found in adapters.values() for each in found)
    above = walk.stated(_Origin(adapters=ids, checkpoints=frozenset(checkpoints)))
    above |= {each for each in (warm_start, None if run in resumes else resumed_from) if each}
    walk, before = _Walk(connection, 0), set()
    origin = walk.origin(Start(Kind.CHECKPOINT, checkpoint))
    if origin is not None:
        before = walk.stated(origin) - {checkpoint}
    return above, before


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a walk begins: ids of rows, and the keys of their nodes."""

    adapters: frozenset[int] = frozenset()
    checkpoints: frozenset[int] = frozenset()
    stretches: frozenset[int] = frozenset()
    keys: tuple[str, ...] = ()


class _Walk:
    """One walk over rows, gathering nodes and edges."""

    def __init__(self, connection: Connection, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._met = Stretches(connection)
        self._inbound: dict[int, set[tuple[str, Link]]] = defaultdict(set)  # what leads into a stretch
        self._heads: dict[int, set[str]] = defaultdict(set)  # what it leads into: its run, or checkpoints of no run
        self._own: set[int] = set()  # the stretches that the origin is of
        self._climbed: set[int] = set()  # all stretches on the way up
        self._shown: dict[int, set[int]] = defaultdict(set)  # exports by stretch
        self._counts: dict[int, int] = {}  # of all exports, for stretches that are listed
        self._described: set[int] = set()  # adapters whose comparisons and score runs are told
        self._everywhere: dict[int, list[tuple[bool, Row[Any]]]] | None = None
        self._drawn = Drawn()

    def origin(self, start: Start) -> _Origin | None:
        """Where the walk begins, with its node; None if that is not known."""
        rows: list[Row[Any]]
        match start.kind:
            case Kind.RUN:
                rows = list(kinship.stretches_of_run(self._connection, start.name))
                ids = frozenset(row.id for row in rows)
                self._met.meet(ids)
                return _Origin(stretches=ids, keys=tuple(self._met.keys[each] for each in ids)) if rows else None
            case Kind.CHECKPOINT:
                for row in kinship.checkpoints_called(self._connection, [start.name]):
                    key = self._drawn.checkpoint(row.digest)
                    return _Origin(checkpoints=frozenset({row.id}), keys=(key,))
            case _:
                for row in kinship.adapters_called(self._connection, [start.name]):
                    return _Origin(adapters=frozenset({row.adapter_id}), keys=(self._drawn.adapter(row),))
        return None

    def climb(self, origin: _Origin, generations: float) -> None:
        """Go towards what it came from."""
        adapters, checkpoints, stretches = set(origin.adapters), set(origin.checkpoints), set(origin.stretches)
        generation = 0
        while adapters or checkpoints or stretches:
            exported = list(kinship.exports_of_adapters(self._connection, adapters))
            self._met.meet({row.stretch_id for row in exported})
            for row in exported:
                if not self._met.is_unchanged(row):
                    self._drawn.exported(row)
                    checkpoints.add(row.checkpoint_id)
            saved = list(kinship.exports_of_checkpoints(self._connection, checkpoints))
            self._met.meet({row.stretch_id for row in saved})
            for row in saved:
                self._show_saved(row)
                stretches.add(row.stretch_id)
            adapters, checkpoints = set(), set()
            for stretch in stretches - self._climbed:
                self._stand(stretch)
                self._link_base(stretch)
                if generation < generations:
                    adapters |= self._link_starts(stretch)
                    checkpoints |= self._link_resume(stretch)
            if not generation:
                self._own |= stretches
            self._climbed |= stretches
            stretches = set()
            generation += 1

    def descend(self, origin: _Origin, generations: float) -> None:
        """Go towards what came of it."""
        adapters, checkpoints, stretches = set(origin.adapters), set(origin.checkpoints), set(origin.stretches)
        exported = list(kinship.exports_of_checkpoints(self._connection, checkpoints))
        self._met.meet({row.stretch_id for row in exported})
        for row in exported:
            self._drawn.saved(row, None)
            if self._show_exported(row):
                adapters.add(row.adapter_id)
        self._described |= adapters
        self.list_exports(stretches)
        seen = set(stretches)
        generation = 0
        while generation < generations and (adapters or checkpoints or stretches):
            found = [*self._started_from(adapters, checkpoints), *self._started_inside(stretches)]
            for stretch, source, link in found:
                self._inbound[stretch].add((source, link))
            adapters, checkpoints = set(), set()
            stretches = {stretch for stretch, _, _ in found} - seen
            seen |= stretches
            self.list_exports(stretches)
            generation += 1

    def list_siblings(self) -> None:
        """Show what else the runs of the origin exported, for the order in them."""
        self.list_exports([each for each in self._own if self._met.rows[each].run], describe=False)

    def list_exports(self, stretches: Collection[int], *, describe: bool = True) -> None:
        """Show the first exports of each of these stretches, as far as the limits go."""
        order = sorted(stretches, key=self._met.keys.__getitem__)
        counts = kinship.counts(self._connection, order)
        self._counts |= counts
        left = TOTAL - sum(map(len, self._shown.values()))
        room = {}
        for stretch in order:
            self._stand(stretch)
            room[stretch] = max(0, min(self._limit, counts.get(stretch, 0), left))
            left -= room[stretch]
        listed = [stretch for stretch in order if room[stretch]]
        for row in kinship.first_exports(self._connection, listed, self._limit):
            if room[row.stretch_id]:
                room[row.stretch_id] -= 1
                self._show_saved(row)
                if self._show_exported(row) and describe:
                    self._described.add(row.adapter_id)

    def stated(self, origin: _Origin) -> set[str]:
        """The hex digests of all adapters and checkpoints from the origin up, and of what the runs up there state."""
        self.climb(origin, math.inf)
        found = self._drawn.digests(Kind.ADAPTER, Kind.CHECKPOINT)
        for stretch in self._climbed:
            row = self._met.rows[stretch]
            found |= {row.warm_start, "" if stretch in self._met.own else row.resumed_from}
        return found - {""}

    def finish(self, origin: _Origin) -> Lineage:
        """All that was found."""
        for stretch, row in self._met.rows.items():
            if row.run and self._heads[stretch]:
                starts = self._met.starts[stretch].values()
                same_tensors = any(start.tensor_digest == row.warm_start for start in starts)
                own, iteration = stretch in self._met.own, self._met.own.get(stretch)
                self._drawn.run(
                    self._met.keys[stretch], row, same_tensors=same_tensors, own=own, own_iteration=iteration
                )
            for source, link in self._inbound[stretch]:
                self._drawn.edges.update(Edge(source, head, link) for head in self._heads[stretch])
        self._drawn.describe(self._connection, self._described)
        self._drawn.name(self._connection)
        left_out = (LeftOut(self._of(each), self._counts[each] - len(self._shown[each])) for each in self._counts)
        return lineage(
            origin.keys,
            self._drawn.nodes(),
            self._drawn.edges,
            (each for each in left_out if each.exports),
            self._stated_at,
        )

    def _started_from(self, adapters: Collection[int], checkpoints: Collection[int]) -> list[tuple[int, str, Link]]:
        """The stretches that started from one of these adapters or checkpoints: which, from what, and how."""
        warm = list(kinship.warm_started(self._connection, adapters))
        resumed = list(kinship.resumed(self._connection, checkpoints))
        self._met.meet({row.started for row in (*warm, *resumed)})
        found = []
        for row in warm:
            start = self._met.starts[row.started].get(row.adapter_id)
            if start is not None:
                found.append((row.started, self._drawn.adapter(start), Link.WARM_STARTED))
        for row in resumed:
            if row.started in self._met.resumes:
                key = digest_key(Kind.CHECKPOINT, self._met.resumes[row.started].digest)
                found.append((row.started, key, Link.RESUMED))
        return found

    def _started_inside(self, stretches: Collection[int]) -> list[tuple[int, str, Link]]:
        """The same of everything that these stretches exported. What is not listed is shown then."""
        rows = self._exports_that_started(stretches)
        self._met.meet({row.started for _, row in rows})
        found = []
        for by_resume, row in rows:
            if by_resume and row.started in self._met.resumes:
                self._show_saved(row)
                if self._show_exported(row):
                    self._described.add(row.adapter_id)
                found.append((row.started, digest_key(Kind.CHECKPOINT, row.checkpoint), Link.RESUMED))
            elif not by_resume and row.adapter_id in self._met.starts[row.started] and not self._met.is_unchanged(row):
                self._show_saved(row)
                self._show_exported(row)
                self._described.add(row.adapter_id)
                found.append((row.started, digest_key(Kind.ADAPTER, row.adapter), Link.WARM_STARTED))
        return found

    def _exports_that_started(self, stretches: Collection[int]) -> list[tuple[bool, Row[Any]]]:
        """Looked for among the exports of these stretches, or, where those are many, among all that started."""
        if not stretches:
            return []
        exports = sum(self._counts.get(stretch, 0) for stretch in stretches)
        if self._everywhere is None and exports > kinship.how_many_started(self._connection):
            self._everywhere = defaultdict(list)
            for by_resume, row in kinship.started_anywhere(self._connection):
                self._everywhere[row.stretch_id].append((by_resume, row))
        if self._everywhere is None:
            return list(kinship.started_inside(self._connection, stretches))
        return [found for stretch in stretches for found in self._everywhere.get(stretch, ())]

    def _stand(self, stretch: int) -> None:
        """Let the run's node stand for a stretch of it."""
        if self._met.rows[stretch].run:
            self._heads[stretch].add(self._met.keys[stretch])

    def _show_saved(self, row: Row[Any]) -> None:
        self._shown[row.stretch_id].add(row.export_id)
        run = self._met.keys[row.stretch_id] if self._met.rows[row.stretch_id].run else None
        checkpoint = self._drawn.saved(row, run)
        self._heads[row.stretch_id].add(run or checkpoint)

    def _show_exported(self, row: Row[Any]) -> bool:
        """Returns whether the adapter is one that came of it."""
        if self._met.is_unchanged(row):
            self._drawn.unchanged(row)
            return False
        self._drawn.exported(row)
        return True

    def _link_base(self, stretch: int) -> None:
        if self._met.rows[stretch].base_name:
            self._inbound[stretch].add((self._drawn.base(self._met.rows[stretch]), Link.TRAINED))

    def _link_starts(self, stretch: int) -> set[int]:
        starts, stated = self._met.starts[stretch], self._met.rows[stretch].warm_start
        keys = [self._drawn.adapter(row) for row in starts.values()]
        if stated and not keys:
            keys = [self._drawn.unknown_adapter(stated)]
        self._inbound[stretch].update((key, Link.WARM_STARTED) for key in keys)
        return set(starts)

    def _link_resume(self, stretch: int) -> set[int]:
        stated, row = self._met.rows[stretch].resumed_from, self._met.resumes.get(stretch)
        if not stated or stretch in self._met.own:
            return set()
        key = self._drawn.checkpoint(stated, known=row is not None)
        self._inbound[stretch].add((key, Link.RESUMED))
        return set() if row is None else {row.id}

    def _of(self, stretch: int) -> str:
        """The node of which exports are left out."""
        if self._met.rows[stretch].run:
            return self._met.keys[stretch]
        return min(key for key, _ in self._inbound[stretch])

    def _stated_at(self, targets: Collection[str]) -> dict[str, str]:
        stretches = [each for each, heads in self._heads.items() if heads & set(targets)]
        first: dict[str, str] = {}
        for stretch, at in kinship.first_exported(self._connection, stretches).items():
            for head in self._heads[stretch]:
                first[head] = min(at, first.get(head, at))
        return first
