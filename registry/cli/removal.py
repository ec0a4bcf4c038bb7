"""The command that removes an adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.cli.arguments import Home, Json, Ref
from registry.cli.environment import open_registry
from registry.cli.output import Output, size

if TYPE_CHECKING:
    from registry.operations.remove import Removed


def rm(
    reference: Ref,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it although somebody relies on it; the record names them.")
    ] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")] = None,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Remove an adapter and print its digest. Exit code 6 if an alias, a score run or another adapter relies on it.

    What is recorded of it stays, with when, by whom and why it was removed. Its checkpoint can be added again.
    """
    output = Output(as_json=as_json)
    removed = open_registry(home_option, output).remove(reference, force=force, reason=reason)
    output.note(f"removed: {size(removed.bytes)}")
    for hold in removed.overrode:
        output.note(f"  was relied on by {hold}")
    output.result(_document(removed), str(removed.digest))


def _document(removed: Removed) -> dict[str, Any]:
    return {
        "digest": str(removed.digest),
        "bytes": removed.bytes,
        "reason": removed.reason,
        "overrode": [{"kind": hold.kind.value, "name": hold.name} for hold in removed.overrode],
        "removed_at": removed.removed_at,
        "record": str(removed.record),
    }
