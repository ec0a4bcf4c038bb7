"""The commands that list adapters: the first ones in some order, all of them or those that meet some criteria."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from registry.cli import documents
from registry.cli.arguments import Home, Json, Limit
from registry.cli.environment import open_registry
from registry.cli.output import Output

if TYPE_CHECKING:
    from registry.core.search import Order
    from registry.core.summary import AdapterSummary

_DEFAULT_LIMIT = 50

Sort = Annotated[
    str,
    typer.Option(
        "--sort", metavar="newest|oldest|iteration|score:NAME", help="By what: the newest, or the highest, first."
    ),
]
Reverse = Annotated[bool, typer.Option("--reverse", help="From the other end.")]


def list_(
    sort: Sort = "newest",
    reverse: Reverse = False,
    limit: Limit = _DEFAULT_LIMIT,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """List the newest adapters, or the first ones in another order."""
    from registry.core import search  # noqa: PLC0415  most commands search nothing

    output = Output(as_json=as_json)
    order = search.order(sort, reverse=reverse)
    adapters = open_registry(home_option, output).find(sort=order, limit=limit)
    output.result(
        {"adapters": [documents.adapter_document(adapter) for adapter in adapters]},
        documents.adapters_text(adapters, _metrics(order)),
    )
    _note_limit(output, adapters, limit, order)


def find(
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="Exported by this run.")] = None,
    iterations: Annotated[
        str | None, typer.Option("--iter", metavar="N|A..B", help="At this iteration, or from A to B: A.. and ..B too.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="SHA|CKPT", help="From this checkpoint: its digest, directory or file."),
    ] = None,
    tensors: Annotated[str | None, typer.Option("--tensors", metavar="SHA", help="With this tensor digest.")] = None,
    base: Annotated[str | None, typer.Option("--base", metavar="NAME", help="On this base, as recorded.")] = None,
    r: Annotated[int | None, typer.Option("--r", metavar="N", help="Of this rank.")] = None,
    alpha: Annotated[float | None, typer.Option("--alpha", metavar="X", help="With this lora_alpha.")] = None,
    verdict: Annotated[
        str | None,
        typer.Option("--verdict", metavar="VERDICT|none", help="With this verdict in `list`, or never compared."),
    ] = None,
    alias: Annotated[str | None, typer.Option("--alias", metavar="NAME", help="Named by this alias now.")] = None,
    scores: Annotated[
        list[str] | None,
        typer.Option("--score", metavar="BOUND", help="With a score as in 'pass@1>0.4'; > >= < <= =. May be repeated."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DATE", help="First exported then or later: a date, or with a time."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="DATE", help="First exported on this date or earlier; before a time."),
    ] = None,
    sort: Sort = "newest",
    reverse: Reverse = False,
    limit: Limit = _DEFAULT_LIMIT,
    home_option: Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line on stdout.")] = False,
) -> None:
    """Find adapters that meet all that is asked for. --run, --iter, --checkpoint and --base are of one export.

    Nothing found is no failure. Times are UTC where no zone is said.
    """
    from registry.core import search  # noqa: PLC0415  most commands search nothing

    output = Output(as_json=as_json)
    order = search.order(sort, reverse=reverse)
    bounds = scores or []
    adapters = open_registry(home_option, output).find(
        run=run,
        iterations=None if iterations is None else search.iterations(iterations),
        checkpoint=checkpoint,
        tensors=tensors,
        base=base,
        r=r,
        alpha=alpha,
        verdict=verdict,
        alias=alias,
        scores=bounds,
        since=since,
        until=until,
        sort=order,
        limit=limit,
    )
    measured = (*_metrics(order), *(search.score_bound(bound).metric for bound in bounds))
    output.objects(map(documents.adapter_document, adapters), documents.adapters_text(adapters, measured))
    _note_limit(output, adapters, limit, order)


def _metrics(order: Order) -> tuple[str, ...]:
    return () if order.metric is None else (order.metric,)


def _note_limit(output: Output, adapters: list[AdapterSummary], limit: int, order: Order) -> None:
    if len(adapters) == limit:
        which = "newest" if (order.by, order.reversed) == ("newest", False) else "first"
        output.note(f"the {which} {limit}; --limit N shows more")
