"""The commands about scores: what score runs found of the adapters they used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from registry.cli import plots
from registry.cli.arguments import Home, Json, Limit
from registry.cli.documents import score_run_document, scores_text, stop_text
from registry.cli.environment import open_registry
from registry.cli.groups import group
from registry.cli.output import Output, printable, table
from registry.core.summary import Status

if TYPE_CHECKING:
    from registry.core.summary import ScoreRunSummary

_DEFAULT_LIMIT = 50
_NOTED = 10

app = group(help="What score runs found of adapters.", no_args_is_help=True)


@app.command()
def add(
    directory: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="A score run's directory, or the run_result.json in it.")
    ],
    adapter: Annotated[
        str | None, typer.Option("--adapter", metavar="REF", help="The adapter it used, where its files do not tell.")
    ] = None,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Link a score run's result to the adapter it used, and print the adapter's digest. Again changes nothing.

    Refused if its files, or its files and --adapter, name different adapters.
    """
    output = Output(as_json=as_json)
    scored = open_registry(home_option, output).add_score(directory, adapter=adapter)
    run = scored.run
    what = "recorded" if scored.new else "already recorded"
    output.note(f"{what}: {run.name or 'score run'}{stop_text(run)}: {scores_text(run)}")
    if run.status is Status.STOPPED:
        output.note("  what a score run found until it stopped is never shown as an adapter's scores")
    for clause in scored.left_out[:_NOTED]:
        output.note(f"  left out: {clause}")
    if len(scored.left_out) > _NOTED:
        output.note(f"  left out: {len(scored.left_out) - _NOTED} more")
    document = score_run_document(run) | {"new": scored.new, "left_out": list(scored.left_out)}
    output.result(document, str(run.adapter))


@app.command("list")
def list_(
    reference: Annotated[
        str | None, typer.Argument(metavar="REF", help="The adapter whose score runs to list. [default: all]")
    ] = None,
    limit: Limit = _DEFAULT_LIMIT,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """List the newest score runs, of one adapter or of all."""
    output = Output(as_json=as_json)
    runs = open_registry(home_option, output).score_runs(reference, limit)
    header = ("ADAPTER", "SCORE RUN", "STATUS", "SCORES", "ADDED")
    output.result({"score_runs": list(map(score_run_document, runs))}, table(header, map(_row, runs)))
    if len(runs) == limit:
        output.note(f"the newest {limit}; --limit N shows more")


@app.command()
def plot(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The training run whose adapters were scored.")],
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="Which score.")],
    to: Annotated[str, typer.Option("--to", metavar="FILE.png", help="The picture to write.")],
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Draw a metric against the run's iterations, with each adapter's verdict, and print the file. Needs matplotlib.

    Only scores of runs that completed are drawn.
    """
    output = Output(as_json=as_json)
    plots.require_matplotlib()
    points = open_registry(home_option, output).run_scores(run, metric)
    plots.draw_scores(run, metric, points, to)
    nowhere = sum(point.iteration is None for point in points)
    if nowhere:
        output.note(f"not drawn: {nowhere} of {len(points)}, of which no iteration is stated")
    document = {
        "run": run,
        "metric": metric,
        "path": to,
        "points": [
            {
                "iteration": point.iteration,
                "digest": str(point.adapter),
                "value": point.value,
                "verdict": point.verdict,
            }
            for point in points
        ],
    }
    output.result(document, printable(to))


def _row(run: ScoreRunSummary) -> tuple[object, ...]:
    return (
        run.adapter.short,
        run.name or "-",
        run.status.value,
        scores_text(run),
        run.scored_at[:19] + "Z",
    )
