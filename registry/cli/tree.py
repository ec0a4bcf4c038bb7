"""Lineage as a tree for people: forward in time, from the oldest ancestors, and what was asked for marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from registry.cli import labels
from registry.core.lineage import ORDER, Edge, Kind, Lineage, Link, Node, node_order

BOXES = ("├─ ", "└─ ", "│  ", "   ")
PLAIN = ("|- ", "`- ", "|  ", "   ")
"""What stands in front of a line: a child, the last child; and, below these, of their own children."""
ASKED = "*"
_HOW = {Link.WARM_STARTED: "warm-started from it", Link.RESUMED: "resumed from the checkpoint"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line that is to be printed: a node as it is reached, or a remark."""

    text: str
    edge: Edge | None = None


def tree(lineage: Lineage, signs: tuple[str, str, str, str]) -> str:
    """Every node once; where one is reached again, the line says that it stands above."""
    return "\n".join(_Tree(lineage).lines(signs))


class _Tree:
    def __init__(self, lineage: Lineage) -> None:
        self._nodes = {node.key: node for node in lineage.nodes}
        self._asked = set(lineage.asked)
        self._after: dict[str, list[Edge]] = defaultdict(list)
        edges = labels.worth_drawing(lineage)
        for edge in sorted(edges, key=self._order):
            self._after[edge.source].append(edge)
        self._left_out = {each.of: each.exports for each in lineage.left_out}
        targets = {edge.target for edge in edges}
        roots = [node for node in lineage.nodes if node.key not in targets]
        self._roots = [node.key for node in sorted(roots, key=lambda node: -ORDER.index(node.kind))]  # starts first
        self._printed: set[str] = set()

    def lines(self, signs: tuple[str, str, str, str]) -> Iterator[str]:
        """The lines, without recursion: a lineage may be longer than Python's stack."""
        child, last, below_child, below_last = signs
        for root in self._roots:
            text, below = self._line(root, None)
            yield text
            ahead = [("", entry, number == 0) for number, entry in enumerate(reversed(below))]
            while ahead:
                before, entry, is_last = ahead.pop()
                text, below = (entry.text, []) if entry.edge is None else self._line(entry.edge.target, entry.edge.link)
                yield f"{before}{last if is_last else child}{text}"
                deeper = before + (below_last if is_last else below_child)
                ahead += [(deeper, each, number == 0) for number, each in enumerate(reversed(below))]

    def _line(self, key: str, link: Link | None) -> tuple[str, list[_Entry]]:
        """The text for a node that is reached by `link`, and what stands below it."""
        node = self._nodes[key]
        if node.kind is Kind.CHECKPOINT:
            return self._checkpoint(node, link)
        text = labels.label(node) + self._how(node, link)
        if key in self._printed:
            return f"{text}  (see above)", []
        self._printed.add(key)
        return self._marked(text, key), self._below(key)

    def _checkpoint(self, node: Node, link: Link | None) -> tuple[str, list[_Entry]]:
        """A checkpoint that gave one adapter is one line with it."""
        exported = [edge.target for edge in self._after[node.key] if edge.link is Link.EXPORTED]
        place = "" if not node.facts["known"] else f"{labels.iteration(node)}  "
        unchanged = f"{labels.unchanged(node)}  " if node.facts["unchanged"] else ""
        how = self._how(node, link)
        if node.key in self._printed:
            return f"{place}{labels.label(node)}{how}  (see above)", []
        self._printed.add(node.key)
        if len(exported) != 1:
            name = labels.label(node) if exported or not unchanged else f"[{labels.label(node)}]"
            return self._marked(f"{place}{unchanged}{name}{how}", node.key), self._below(node.key)
        adapter = exported[0]
        again = adapter in self._printed
        self._printed.add(adapter)
        told = f"{labels.label(self._nodes[adapter])}{'  (see above)' if again else ''}"
        text = f"{place}{unchanged}{told}  [{labels.label(node)}]{how}"
        below = [_Entry("", edge) for edge in self._after[node.key] if edge.link is not Link.EXPORTED]
        return self._marked(text, node.key, adapter), [*([] if again else self._below(adapter)), *below]

    def _below(self, key: str) -> list[_Entry]:
        entries = [_Entry("", edge) for edge in self._after[key]]
        if key in self._left_out:
            entries.append(_Entry(f"and {self._left_out[key]} more"))
        return entries

    def _marked(self, text: str, *keys: str) -> str:
        return f"{text}  {ASKED}" if self._asked.intersection(keys) else text

    def _how(self, node: Node, link: Link | None) -> str:
        if link not in _HOW:
            return ""
        same = " (same tensors)" if link is Link.WARM_STARTED and node.facts.get("same_tensors") else ""
        return f", {_HOW[link]}{same}"

    def _order(self, edge: Edge) -> tuple[Any, ...]:
        """Comparisons and score runs first, as they were made; then checkpoints by iteration; then runs by name.

        Of one run's stretches, those that it resumed itself come last, by the iteration that they began with.
        """
        node = self._nodes[edge.target]
        at = node.facts.get("compared_at") or node.facts.get("scored_at") or ""
        last = Kind.COMPARISON if node.kind is Kind.SCORE else node.kind
        began = node.facts.get("resumed_from_iteration")
        name = node.facts["name"] if node.kind is Kind.RUN else ""
        return -ORDER.index(last), at, name, -1 if began is None else began, *node_order(node)
