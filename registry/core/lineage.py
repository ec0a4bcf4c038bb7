"""Lineage: what an adapter came from and what came of it, as a graph of nodes and of edges from earlier to later."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from registry.core import jsontext
from registry.core.digest import Digest

_MARK = 16  # hex digits that keep keys of equal names apart


class Kind(StrEnum):
    """What a node is, in the order in which one comes of the other."""

    BASE = "base"
    RUN = "run"
    CHECKPOINT = "checkpoint"
    ADAPTER = "adapter"
    COMPARISON = "comparison"
    SCORE = "score"


class Link(StrEnum):
    """What the earlier node was to the later one."""

    TRAINED = "trained"
    SAVED = "saved"
    EXPORTED = "exported"
    COMPARED = "compared"
    SCORED = "scored"
    WARM_STARTED = "warm-started"
    RESUMED = "resumed"


STARTS = (Link.WARM_STARTED, Link.RESUMED)
"""What leads from one run to another, or, forged, back to the same."""
ORDER = tuple(Kind)


@dataclass(frozen=True, slots=True)
class Node:
    """One thing: `key` names it alone of all, and stays the same; `facts` are JSON values."""

    kind: Kind
    key: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` came of `source`, both keys of nodes."""

    source: str
    target: str
    link: Link


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """How many exports of the node `of` (a run; or a start, where the run has no name) are not shown."""

    of: str
    exports: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """A lineage, without loops.

    A run's node stands for one stretch of it: what its exports say alike of base and start. A stated start that this
    registry does not have is a node too, with `known` false. What is order within a run and no descent is no edge: a
    run resumed from its own checkpoint has `resumed_from_own` and `resumed_from_iteration`, and a checkpoint that holds
    the adapter that its run started from has that one under `unchanged`.

    Attributes:
        asked: keys of what was asked for: one node, or, for a run, one for each stretch.
        nodes: by kind, iteration and key.
        edges: sorted.
        left_out: where not all exports are shown.
        contradictions: a sentence for each stated start that was left out because it would close a loop.
    """

    asked: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    left_out: tuple[LeftOut, ...] = ()
    contradictions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """What a lineage is asked of: an adapter or a checkpoint by its digest, or a run by its name."""

    kind: Kind
    name: str


def digest_key(kind: Kind, hex_digits: str) -> str:
    """The key of an adapter, a checkpoint or a score run's record."""
    return f"{kind}:{hex_digits}"


def named_key(kind: Kind, name: str, *more: str) -> str:
    """The key of a base or of a stretch of a run: names can be equal, and `more` tells them apart."""
    mark = hashlib.sha256(jsontext.compact([name, *more])).hexdigest()[:_MARK]
    return f"{kind}:{name}#{mark}"


def lineage(
    asked: Iterable[str],
    nodes: Iterable[Node],
    edges: Collection[Edge],
    left_out: Iterable[LeftOut],
    stated_at: Callable[[Collection[str]], Mapping[str, str]],
) -> Lineage:
    """Put a lineage together: sorted, and without the edges that would close a loop.

    Args:
        asked: keys of what was asked for.
        nodes: in any order.
        edges: in any order.
        left_out: in any order.
        stated_at: tells, of targets of starts, when each was first stated. Only asked where there is a loop: of the
            statements that contradict one another, the last is left out.
    """
    by_key = {node.key: node for node in nodes}
    kept, closing = _acyclic(edges, stated_at)
    return Lineage(
        asked=tuple(sorted(asked)),
        nodes=tuple(sorted(by_key.values(), key=node_order)),
        edges=tuple(sorted(kept, key=edge_order)),
        left_out=tuple(sorted(left_out)),
        contradictions=tuple(
            f"{_called(by_key[edge.target])} says that it started from {_called(by_key[edge.source])}, "
            "which descends from it; that is left out"
            for edge in closing
        ),
    )


def node_order(node: Node) -> tuple[Any, ...]:
    """By kind, then iteration (none comes last), then key."""
    iteration = node.facts.get("iteration")
    return ORDER.index(node.kind), iteration is None, iteration or 0, node.key


def edge_order(edge: Edge) -> tuple[str, str, str]:
    """By source, target and link."""
    return edge.source, edge.target, edge.link


def _acyclic(
    edges: Collection[Edge], stated_at: Callable[[Collection[str]], Mapping[str, str]]
) -> tuple[list[Edge], list[Edge]]:
    """The edges without those that would close a loop; and these. Every loop has a start in it."""
    knotted = _knotted(edges)
    doubtful = [edge for edge in edges if edge.link in STARTS and {edge.source, edge.target} <= knotted]
    if not doubtful:
        return list(edges), []
    first = stated_at({edge.target for edge in doubtful})
    doubtful.sort(key=lambda edge: (first.get(edge.target, ""), *edge_order(edge)))
    doubted = set(doubtful)
    kept = [edge for edge in edges if edge not in doubted]
    after: dict[str, list[str]] = defaultdict(list)
    for edge in kept:
        after[edge.source].append(edge.target)
    closing = []
    for edge in doubtful:
        if _reaches(after, edge.target, edge.source):
            closing.append(edge)
        else:
            kept.append(edge)
            after[edge.source].append(edge.target)
    return kept, closing


def _knotted(edges: Collection[Edge]) -> set[str]:
    """The nodes on loops and between them: what is left when ends are taken off until there are none."""
    left = {edge.source for edge in edges} & {edge.target for edge in edges}
    for forward in (True, False):
        count: dict[str, int] = defaultdict(int)
        after: dict[str, list[str]] = defaultdict(list)
        for edge in edges:
            if edge.source in left and edge.target in left:
                one, other = (edge.source, edge.target) if forward else (edge.target, edge.source)
                count[other] += 1
                after[one].append(other)
        ends = [key for key in left if not count[key]]
        while ends:
            key = ends.pop()
            left.discard(key)
            for each in after[key]:
                count[each] -= 1
                if not count[each]:
                    ends.append(each)
    return left


def _reaches(after: Mapping[str, Sequence[str]], one: str, other: str) -> bool:
    seen, ahead = {one}, [one]
    while ahead:
        key = ahead.pop()
        if key == other:
            return True
        for each in after.get(key, ()):
            if each not in seen:
                seen.add(each)
                ahead.append(each)
    return False


def _called(node: Node) -> str:
    name = node.facts.get("digest")
    return f"{node.kind} {node.facts['name'] if name is None else Digest.parse(name).short}"
