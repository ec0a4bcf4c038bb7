"""What lineage calls its nodes, on one line each; and which of its edges are worth drawing."""

from __future__ import annotations

import re
from collections import defaultdict

from registry.cli.output import printable
from registry.core.digest import Digest
from registry.core.lineage import STARTS, Edge, Kind, Lineage, Link, Node

_LONGEST = 80  # characters of a name
_HEX = re.compile(r"[0-9a-f]{12,}")
_SHORT = 12  # hex digits


def label(node: Node) -> str:
    """What a node is called."""
    match node.kind:
        case Kind.BASE:
            revision = node.facts["revision"]
            return f"base {clipped(node.facts['name'])}" + (f" @ {clipped(_short(revision))}" if revision else "")
        case Kind.RUN:
            return f"run {clipped(node.facts['name'])}{_own_resume(node)}"
        case Kind.CHECKPOINT:
            return f"checkpoint {short(node)}{_unknown(node)}"
        case Kind.ADAPTER:
            return "  ".join((f"adapter {short(node)}", *remarks(node)))
        case Kind.COMPARISON:
            return f"served {node.facts['verdict']}: {clipped(node.facts['engine'])}"
    return _score(node)


def remarks(adapter: Node) -> list[str]:
    """What is said beside an adapter."""
    found = [clipped(name) for name in adapter.facts["aliases"]]
    if adapter.facts["removed_at"]:
        found.append("(removed)")
    if not adapter.facts["known"]:
        found.append("(not in this registry)")
    return found


def iteration(checkpoint: Node) -> str:
    """Where in its run a checkpoint stands."""
    number = checkpoint.facts["iteration"]
    return "iteration ?" if number is None else f"iteration {number}"


def unchanged(checkpoint: Node) -> str:
    """The starts of its run that a checkpoint still holds."""
    return "unchanged start " + " ".join(Digest.parse(each).short for each in checkpoint.facts["unchanged"])


def short(node: Node) -> str:
    """The first digits of a node's digest."""
    return Digest.parse(node.facts["digest"]).short


def clipped(name: object) -> str:
    """A name from outside, of a length and of characters that a line can have."""
    text = str(name)
    return printable(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...")


def worth_drawing(lineage: Lineage) -> list[Edge]:
    """All edges but those from a base to what also comes of it by a start."""
    after: dict[str, list[str]] = defaultdict(list)
    starts: dict[str, list[str]] = defaultdict(list)
    for edge in lineage.edges:
        after[edge.source].append(edge.target)
        if edge.link in STARTS:
            starts[edge.target].append(edge.source)
    bases = {edge.source for edge in lineage.edges if edge.link is Link.TRAINED and edge.target in starts}
    reached = {base: _reached(after, base) for base in bases}
    return [
        edge
        for edge in lineage.edges
        if edge.link is not Link.TRAINED
        or edge.target not in starts
        or reached[edge.source].isdisjoint(starts[edge.target])
    ]


def _reached(after: dict[str, list[str]], key: str) -> set[str]:
    seen, ahead = {key}, [key]
    while ahead:
        for each in after.get(ahead.pop(), ()):
            if each not in seen:
                seen.add(each)
                ahead.append(each)
    return seen


def _own_resume(run: Node) -> str:
    stated, number = run.facts["resumed_from_own"], run.facts["resumed_from_iteration"]
    if not stated:
        return ""
    return ", resumed from its own checkpoint" if number is None else f", resumed from its iteration {number}"


def _score(run: Node) -> str:
    name = f" {clipped(run.facts['name'])}" if run.facts["name"] else ""
    values = ", ".join(f"{clipped(metric)} {value:g}" for metric, value in run.facts["scores"].items())
    stopped = "" if run.facts["status"] == "completed" else f" (partial: {_reason(run)})"
    return f"score run{name}: {values or 'no scores'}{stopped}"


def _reason(run: Node) -> str:
    reason = run.facts["reason"]
    return f"stopped early, {clipped(reason)}" if reason else "stopped early"


def _unknown(node: Node) -> str:
    return "" if node.facts["known"] else "  (not in this registry)"


def _short(revision: str) -> str:
    return revision[:_SHORT] if _HEX.fullmatch(revision) else revision
