"""The commands that hand an adapter out, or tell of it."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.cli.arguments import Home, Json, Ref
from registry.cli.environment import open_registry
from registry.cli.output import Output, printable


def get(
    reference: Ref,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to make; it must not exist.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace DIR, if it holds an adapter's files and nothing else.")
    ] = False,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Copy an adapter into a new directory, every byte verified, and print the directory."""
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    digest = registry.resolve(reference)
    directory = registry.get(str(digest), to, force=force)
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
    adapter = open_registry(home_option, output).show(reference)
    output.result(documents.adapter_document(adapter), documents.adapter_text(adapter))
