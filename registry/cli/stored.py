"""The commands that hand an adapter out, or tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from registry.cli.arguments import BaseName, ForEngine, Home, Json, MaxRank, Ref
from registry.cli.environment import open_registry
from registry.cli.output import Output, printable
from registry.core.errors import RegistryError

if TYPE_CHECKING:
    from registry.core.engines import Fitness


def get(
    reference: Ref,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to make; it must not exist.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace DIR, if it holds an adapter's files and nothing else.")
    ] = False,
    engine: ForEngine = None,
    base_name: BaseName = None,
    max_rank: MaxRank = None,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Copy an adapter into a new directory, every byte verified, and print the directory."""
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    digest = registry.resolve(reference)
    directory = registry.get(str(digest), to, force=force, engine=engine, base_name=base_name, max_rank=max_rank)
    output.result({"digest": str(digest), "directory": directory}, printable(directory))


def path(reference: Ref, home_option: Home = None, as_json: Json = False) -> None:
    """Verify an adapter and print its directory inside the registry, for tools that only read it."""
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    digest = registry.resolve(reference)
    directory = registry.path(str(digest))
    output.result({"digest": str(digest), "path": directory}, printable(directory))


def show(reference: Ref, home_option: Home = None, as_json: Json = False) -> None:
    """Show what is known about an adapter: identity, settings, and every checkpoint that gave it."""
    from registry.cli import documents  # noqa: PLC0415  `path` and `get` start sooner without

    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    adapter = registry.show(reference)
    engines: Sequence[Fitness] = ()
    try:
        engines = registry.fitness(str(adapter.digest))
    except RegistryError as error:  # what is recorded of it can be told all the same
        output.note(f"what engines make of it is not known: {error}")
    output.result(documents.shown_document(adapter, engines), documents.shown_text(adapter, engines))
