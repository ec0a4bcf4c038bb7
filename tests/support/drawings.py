"""Lineages that are made up, and what a drawing of one may consist of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from registry.core.lineage import Edge, Kind, Lineage, Link, Node
from tests.support.values import digest_of


def made_up(*edges: tuple[str, str, Link], asked: str, name: str | None = None) -> Lineage:
    """A lineage of nodes with keys like `run x`; they are called x, or all of them `name`."""
    keys = sorted({key for source, target, _ in edges for key in (source, target)})
    nodes = tuple(node_of(key, key.partition(" ")[2] if name is None else name) for key in keys)
    return Lineage((asked,), nodes, tuple(Edge(*edge) for edge in edges))


def node_of(key: str, name: str) -> Node:
    kind = Kind(key.partition(" ")[0])
    facts: dict[str, Any] = {"known": True, "iteration": 1, "unchanged": [], "aliases": [], "removed_at": None}
    match kind:
        case Kind.BASE:
            facts = {"name": name, "revision": name}
        case Kind.RUN:
            facts = {"name": name, "same_tensors": False, "resumed_from_own": False, "resumed_from_iteration": None}
        case Kind.ADAPTER:
            facts |= {"digest": str(digest_of(key)), "aliases": [name]}
        case Kind.CHECKPOINT:
            facts |= {"digest": str(digest_of(key))}
        case Kind.COMPARISON:
            facts = {"verdict": "identical", "engine": name, "compared_at": "2026"}
        case Kind.SCORE:
            facts = {"name": name, "status": "stopped", "reason": name, "scores": {name: 1.0}, "scored_at": "2026"}
    return Node(kind, key, facts)


DOT_TOKEN = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([A-Za-z_]\w*|\d+)|(->)|([{}\[\];=,]))', re.DOTALL)


def dot_tokens(text: str) -> Iterator[tuple[str, str]]:
    """The tokens of DOT, of which a quoted string is one; anything else is no DOT."""
    place = 0
    while text[place:].strip():
        found = DOT_TOKEN.match(text, place)
        assert found, text[place : place + 40]
        place = found.end()
        kind = ("string", "word", "arrow", "sign")[(found.lastindex or 1) - 1]
        yield kind, found[found.lastindex or 1]


MERMAID_LINE = re.compile(
    r"flowchart LR"
    r"|  classDef asked stroke-width:4px"
    r"|  class n\d+(,n\d+)* asked"
    r'|  n\d+(\[\(|\[/|\(\[|\[)"(?P<text>[^"`<>|\[\]{}%\\&]*)"(\)\]|/\]|\]\)|\])'
    r'|  n\d+ -->\|"[a-z-]+"\| n\d+'
)
