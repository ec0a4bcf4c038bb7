"""The command that adds a run's checkpoints as they come."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.cli import documents, exits
from registry.cli.arguments import AllowNonfinite, Alpha, Base, Home, Json, Parent, Run
from registry.cli.environment import open_registry
from registry.cli.exporting import Told
from registry.cli.output import Output


def watch(
    directory: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="The run's directory, which need not be there yet.")
    ],
    every: Annotated[float, typer.Option("--every", metavar="S", help="Seconds between two looks.")] = 5.0,
    until_idle: Annotated[
        float | None, typer.Option("--until-idle", metavar="S", help="End once nothing has changed for S seconds.")
    ] = None,
    base: Base = None,
    run: Run = None,
    parent: Parent = None,
    alpha: Alpha = None,
    allow_nonfinite: AllowNonfinite = False,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Export a run's checkpoints into the registry as they come, and print each adapter's digest, until Ctrl-C.

    A checkpoint is taken once it lacks nothing and its files have stayed the same from one look to the next. Started
    again, it goes on where the registry is.
    """
    output = Output(as_json=as_json)
    codes: dict[str, int] = {}  # as each checkpoint stands: one that was refused may have been added since
    arrivals = open_registry(home_option, output).watch(
        directory,
        every=every,
        until_idle=until_idle,
        parent=parent,
        alpha=alpha,
        run=run,
        base=base,
        allow_nonfinite=allow_nonfinite,
    )
    for arrival in arrivals:
        told = Told(output)
        told.arrived(arrival)
        output.objects([documents.arrival_document(arrival)])
        codes[arrival.checkpoint] = told.worst
    raise typer.Exit(max(codes.values(), default=exits.DONE))
