"""Lineage as a graph for Graphviz or Mermaid. Names are quoted so that none can be more than a name."""

from __future__ import annotations

from collections.abc import Iterator

from registry.cli import labels
from registry.core.lineage import Kind, Lineage, Node

_SHAPES = {
    Kind.BASE: "cylinder",
    Kind.RUN: "box",
    Kind.CHECKPOINT: "note",
    Kind.ADAPTER: "ellipse",
    Kind.COMPARISON: "plaintext",
    Kind.SCORE: "plaintext",
}
_BRACKETS = {
    Kind.BASE: ("[(", ")]"),
    Kind.RUN: ("[", "]"),
    Kind.CHECKPOINT: ("[/", "/]"),
    Kind.ADAPTER: ("([", "])"),
    Kind.COMPARISON: ("[", "]"),
    Kind.SCORE: ("[", "]"),
}
_MERMAID_SAFE = frozenset(" .,:-_/()=+@")
"""What, beside letters and digits, stands for itself in a quoted label."""


def dot(lineage: Lineage) -> str:
    """For Graphviz's `dot`."""
    return "\n".join(_dot(lineage))


def mermaid(lineage: Lineage) -> str:
    """For Mermaid, as in Markdown's `mermaid` blocks."""
    return "\n".join(_mermaid(lineage))


def _dot(lineage: Lineage) -> Iterator[str]:
    ids = _ids(lineage)
    yield "digraph lineage {"
    yield "  rankdir=LR;"
    for node in lineage.nodes:
        bold = ", style=bold" if node.key in lineage.asked else ""
        yield f"  {ids[node.key]} [shape={_SHAPES[node.kind]}, label={_dot_text(_label(node))}{bold}];"
    for number, each in enumerate(lineage.left_out):
        yield f"  m{number} [shape=plaintext, label={_dot_text(f'and {each.exports} more')}];"
        yield f"  {ids[each.of]} -> m{number} [style=dotted];"
    for edge in labels.worth_drawing(lineage):
        yield f"  {ids[edge.source]} -> {ids[edge.target]} [label={_dot_text(edge.link)}];"
    yield "}"


def _mermaid(lineage: Lineage) -> Iterator[str]:
    ids = _ids(lineage)
    yield "flowchart LR"
    for node in lineage.nodes:
        before, after = _BRACKETS[node.kind]
        yield f"  {ids[node.key]}{before}{_mermaid_text(_label(node))}{after}"
    for number, each in enumerate(lineage.left_out):
        yield f"  m{number}[{_mermaid_text(f'and {each.exports} more')}]"
        yield f"  {ids[each.of]} -.-> m{number}"
    for edge in labels.worth_drawing(lineage):
        yield f"  {ids[edge.source]} -->|{_mermaid_text(edge.link)}| {ids[edge.target]}"
    yield "  classDef asked stroke-width:4px"
    yield f"  class {','.join(ids[key] for key in lineage.asked)} asked"


def _ids(lineage: Lineage) -> dict[str, str]:
    return {node.key: f"n{number}" for number, node in enumerate(lineage.nodes)}


def _label(node: Node) -> str:
    """What a node is called where nothing stands around it."""
    if node.kind is not Kind.CHECKPOINT or not node.facts["known"]:
        return labels.label(node)
    unchanged = f", {labels.unchanged(node)}" if node.facts["unchanged"] else ""
    return f"{labels.label(node)}, {labels.iteration(node)}{unchanged}"


def _dot_text(text: str) -> str:
    """A quoted string; a backslash in it is one, and not the beginning of an escape."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _mermaid_text(text: str) -> str:
    """A quoted string in which all that Mermaid, Markdown or HTML could read is written as a number."""
    safe = (char if char.isalnum() or char in _MERMAID_SAFE else f"#{ord(char)};" for char in text)
    return f'"{"".join(safe)}"'
