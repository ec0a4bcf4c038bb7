"""The commands about aliases: movable names for adapters, with their history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.cli.arguments import Home, Json, Ref
from registry.cli.environment import open_registry
from registry.cli.groups import group
from registry.cli.output import Output, table
from registry.core.digest import Digest
from registry.core.refs import NO_ADAPTER

if TYPE_CHECKING:
    from registry.core.alias import AliasMove
    from registry.operations.alias import Moved

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '.', '_', '-'; not all of them hex.")]
Expect = Annotated[
    str | None,
    typer.Option("--expect", metavar="REF|none", help="Move it only if this is what it names now, or nothing."),
]

app = group(help="Movable names for adapters.", no_args_is_help=True)


@app.command("set")
def set_(name: Name, reference: Ref, expect: Expect = None, home_option: Home = None, as_json: Json = False) -> None:
    """Let NAME name an adapter, and print the adapter's digest. Exit code 6 if --expect is not what it names now."""
    output = Output(as_json=as_json)
    _print(output, open_registry(home_option, output).set_alias(name, reference, expect=expect))


@app.command()
def remove(name: Name, expect: Expect = None, home_option: Home = None, as_json: Json = False) -> None:
    """Let NAME name no adapter any more. Its history stays."""
    output = Output(as_json=as_json)
    _print(output, open_registry(home_option, output).remove_alias(name, expect=expect))


@app.command("list")
def list_(home_option: Home = None, as_json: Json = False) -> None:
    """List the aliases and the adapters they name."""
    output = Output(as_json=as_json)
    moves = open_registry(home_option, output).aliases()
    rows = ((move.name, _text(move.after), move.moved_at, move.moved_by) for move in moves)
    output.result({"aliases": list(map(_document, moves))}, table(("ALIAS", "ADAPTER", "SINCE", "BY"), rows))


@app.command()
def history(name: Name, home_option: Home = None, as_json: Json = False) -> None:
    """List the moves of an alias, oldest first."""
    output = Output(as_json=as_json)
    moves = open_registry(home_option, output).alias_history(name)
    rows = ((move.sequence, _text(move.before), _text(move.after), move.moved_at, move.moved_by) for move in moves)
    output.result({"moves": list(map(_document, moves))}, table(("MOVE", "FROM", "TO", "AT", "BY"), rows))


def _print(output: Output, moved: Moved) -> None:
    move = moved.move
    if moved.changed:
        output.note(f"{move.name}: {_text(move.before)} -> {_text(move.after)}")
    else:
        output.note(f"{move.name} names it already")
    document = _document(move) | {"changed": moved.changed}
    output.result(document, None if move.after is None else str(move.after))


def _document(move: AliasMove) -> dict[str, Any]:
    return {
        "alias": move.name,
        "digest": move.after and str(move.after),
        "previous": move.before and str(move.before),
        "sequence": move.sequence,
        "moved_at": move.moved_at,
        "moved_by": move.moved_by,
        "record": str(move.record),
    }


def _text(digest: Digest | None) -> str:
    return NO_ADAPTER if digest is None else str(digest)
