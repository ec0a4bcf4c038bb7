"""The command that shows lineage, in each of its formats."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.cli.arguments import MAX_LIMIT, Home, Json
from registry.cli.environment import open_registry
from registry.cli.output import Output
from registry.core.errors import Refused

if TYPE_CHECKING:
    from registry.core.lineage import Lineage


_DEFAULT_LIMIT = 50


class Format(StrEnum):
    """How lineage is printed."""

    TREE = "tree"
    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


Target = Annotated[
    str,
    typer.Argument(
        metavar="REF|CKPT|RUN",
        help="An adapter; a checkpoint, by digest or path; or a run. adapter:, checkpoint: or run: in front decides.",
    ),
]


def lineage(
    target: Target,
    up: Annotated[bool, typer.Option("--up", help="Only what it came from.")] = False,
    down: Annotated[bool, typer.Option("--down", help="Only what came of it.")] = False,
    depth: Annotated[
        int | None, typer.Option("--depth", min=0, metavar="N", help="Steps from run to run. [default: all]")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MAX_LIMIT, metavar="N", help="Exports listed of one run.")
    ] = _DEFAULT_LIMIT,
    form: Annotated[
        Format | None, typer.Option("--format", help="A tree for people, JSON, or a graph to be drawn. [default: tree]")
    ] = None,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Show what an adapter, a checkpoint or a run came from, and what came of it.

    Parents are only what a run's config or `add --parent` states. Iterations of one run are shown in their order, not
    as one coming of the other.
    """
    if as_json and form not in (None, Format.JSON):
        raise Refused("--json and another format", key="--format", found=form)
    output = Output(as_json=as_json or form is Format.JSON)
    either = up or down
    found = open_registry(home_option, output).lineage(
        target, up=up or not either, down=down or not either, depth=depth, limit=limit
    )
    for contradiction in found.contradictions:
        output.note(f"contradiction: {contradiction}")
    output.result(_document(found), _text(found, form))


def _text(found: Lineage, form: Format | None) -> str:
    from registry.cli import graphs, tree  # noqa: PLC0415  most commands draw nothing

    match form:
        case Format.DOT:
            return graphs.dot(found)
        case Format.MERMAID:
            return graphs.mermaid(found)
    return tree.tree(found, tree.BOXES if _prints(tree.BOXES) else tree.PLAIN)


def _prints(signs: tuple[str, ...]) -> bool:
    """Whether stdout can say this."""
    try:
        "".join(signs).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _document(found: Lineage) -> dict[str, Any]:
    return {
        "asked": list(found.asked),
        "nodes": [{"key": node.key, "kind": node.kind.value, **node.facts} for node in found.nodes],
        "edges": [{"source": each.source, "target": each.target, "link": each.link.value} for each in found.edges],
        "left_out": [{"of": each.of, "exports": each.exports} for each in found.left_out],
        "contradictions": list(found.contradictions),
    }
