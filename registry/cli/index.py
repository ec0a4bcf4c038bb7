"""The commands about the index: made anew from the store, or brought to this program's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from registry.cli import exits
from registry.cli.arguments import Home, Json
from registry.cli.environment import open_registry
from registry.cli.groups import group
from registry.cli.output import Output, error_document, table

if TYPE_CHECKING:
    from registry.operations.reindex import Reindexed

database = group(help="The index's schema.", no_args_is_help=True)


def reindex(home_option: Home = None, as_json: Json = False) -> None:
    """Make the index anew from the store's records, and tell what differed. Exit code 5 if a record is damaged.

    A damaged record is named and left out; the rest is indexed. Meanwhile others read the index as it was.
    """
    output = Output(as_json=as_json)
    with output.progress("reindex") as progress:
        done = open_registry(home_option, output).reindex(progress)
    for error in done.damaged:
        output.error(error)
    if done.set_aside is not None:
        output.note(f"the damaged index is kept as {done.set_aside}")
    output.note(f"{sum(done.records.values())} records in {done.seconds:.2f} s: {done.rate:.0f} records/s")
    rows = ((each.kind, each.rows, each.added, each.removed, each.changed) for each in done.changes)
    output.result(_document(done), table(("ROWS", "NOW", "ADDED", "REMOVED", "CHANGED"), rows))
    raise typer.Exit(exits.DAMAGED if done.damaged else exits.DONE)


def _document(done: Reindexed) -> dict[str, Any]:
    return {
        "records": dict(sorted(done.records.items())),
        "changes": {
            each.kind.replace(" ", "_"): {
                "rows": each.rows,
                "added": each.added,
                "removed": each.removed,
                "changed": each.changed,
            }
            for each in done.changes
        },
        "damaged": [error_document(error) for error in done.damaged],
        "set_aside": done.set_aside,
        "seconds": done.seconds,
        "records_per_second": done.rate,
    }


@database.command()
def current(home_option: Home = None, as_json: Json = False) -> None:
    """Print the revision of the index's schema, and the one this program needs."""
    output = Output(as_json=as_json)
    revision = open_registry(home_option, output).index_revision()
    text = f"found {revision.found or 'none'}, needed {revision.needed}"
    output.result({"found": revision.found, "needed": revision.needed}, text)


@database.command()
def upgrade(home_option: Home = None, as_json: Json = False) -> None:
    """Create the index, or bring its schema up to date."""
    output = Output(as_json=as_json)
    before = open_registry(home_option, output).upgrade_index()
    text = f"index at {before.needed} (was {before.found or 'empty'})"
    output.result({"found": before.found, "needed": before.needed}, text)
