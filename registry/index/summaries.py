"""The core's values from rows: everything that is known about some adapters, in as many queries as there are kinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, select

from registry.core.comparison import Verdict
from registry.core.digest import Digest
from registry.core.model import number
from registry.core.records import Record
from registry.core.summary import AdapterSummary, ComparisonSummary, ExportSummary, ScoreRunSummary, Status
from registry.index import facts
from registry.index.schema import (
    adapters,
    alias_moves,
    checkpoints,
    comparisons,
    exports,
    metrics,
    runs,
    score_runs,
    scores,
)

# Written out once: composing them anew takes longer than they run.
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_EXPORTS = (
    select(exports, checkpoints.c.digest.label("checkpoint"), runs.c.name.label("run"))
    .join(checkpoints, exports.c.checkpoint_id == checkpoints.c.id)
    .outerjoin(runs, exports.c.run_id == runs.c.id)
    .where(exports.c.adapter_id.in_(_IDS))
    .order_by(exports.c.exported_at, exports.c.record)
)
_COMPARISONS = (
    select(comparisons)
    .where(comparisons.c.adapter_id.in_(_IDS))
    .order_by(comparisons.c.compared_at, comparisons.c.record, comparisons.c.engine)
)
_SCORE_RUNS = (
    select(score_runs, adapters.c.digest.label("adapter"))
    .join_from(score_runs, adapters)
    .where(score_runs.c.adapter_id.in_(_IDS))
    .order_by(score_runs.c.scored_at, score_runs.c.record)
)
_ALIASES = (
    select(alias_moves.c.after, alias_moves.c.name)
    .where(alias_moves.c.after.in_(bindparam("digests", expanding=True)), alias_moves.c.stands)
    .order_by(alias_moves.c.folded)
)
_EQUAL_TENSORS = (
    select(adapters.c.tensor_digest, adapters.c.digest, adapters.c.removed_at)
    .where(adapters.c.tensor_digest.in_(bindparam("tensors", expanding=True)))
    .order_by(adapters.c.digest)
)
"""With `removed_at` as a condition, SQLite would read the index of all that is there."""


def summaries(connection: Connection, rows: Iterable[Row[Any]]) -> list[AdapterSummary]:
    """What is known about the adapters of these rows of `adapters`, in their order."""
    rows = list(rows)
    ids = [row.id for row in rows]
    by_adapter = _exports(connection, ids)
    compared = _comparisons(connection, ids)
    scored = _score_runs(connection, ids)
    named = _aliases(connection, [row.digest for row in rows])
    equal = _equal_tensors(connection, {row.tensor_digest for row in rows})
    return [
        AdapterSummary(
            digest=Digest(row.digest),
            tensor_digest=Digest(row.tensor_digest),
            bytes=row.bytes,
            modules=row.modules,
            r=row.r,
            lora_alpha=number(row.lora_alpha) or 0,
            use_rslora=row.use_rslora,
            first_exported_at=row.first_exported_at,
            exports=tuple(by_adapter[row.id]),
            comparisons=tuple(compared[row.id]),
            score_runs=tuple(scored[row.id]),
            same_tensors=tuple(Digest(other) for other in equal[row.tensor_digest] if other != row.digest),
            aliases=tuple(named[row.digest]),
            removed_at=row.removed_at,
        )
        for row in rows
    ]


def score_run_summaries(connection: Connection, rows: Iterable[Row[Any]]) -> list[ScoreRunSummary]:
    """The score runs of these rows of `score_runs` with the adapter's digest as `adapter`, in their order."""
    rows = list(rows)
    values: dict[int, list[tuple[str, float]]] = {row.id: [] for row in rows}
    query = select(scores.c.score_run_id, metrics.c.name, scores.c.value).join_from(scores, metrics)
    for score_run, name, value in connection.execute(
        query.where(scores.c.score_run_id.in_(values)).order_by(metrics.c.name)
    ):
        values[score_run].append((name, value))
    return [
        ScoreRunSummary(
            adapter=Digest(row.adapter),
            name=row.name,
            status=Status(row.status),
            reason=row.reason,
            scores=tuple(values[row.id]),
            path=row.path,
            result_digest=Digest(row.result_digest),
            config_digest=row.config_digest and Digest(row.config_digest),
            scored_at=row.scored_at,
            scored_by=row.scored_by,
            record=Digest(row.record),
        )
        for row in rows
    ]


def score_run_of(record: Record) -> ScoreRunSummary:
    """The score run that a record states, as it is answered once it is in the index.

    Raises:
        MalformedFile: it does not say what such a record must.
    """
    row = facts.score_run(record)
    return ScoreRunSummary(
        adapter=record.subject,
        name=row["name"],
        status=Status(row["status"]),
        reason=row["reason"],
        scores=tuple(sorted(row["scores"].items())),
        path=row["path"],
        result_digest=Digest(row["result_digest"]),
        config_digest=row["config_digest"] and Digest(row["config_digest"]),
        scored_at=row["scored_at"],
        scored_by=row["scored_by"],
        record=record.digest,
    )


def _exports(connection: Connection, ids: list[int]) -> dict[int, list[ExportSummary]]:
    found: dict[int, list[ExportSummary]] = {each: [] for each in ids}
    for row in connection.execute(_EXPORTS, {"ids": ids}):
        summary = ExportSummary(
            checkpoint=Digest(row.checkpoint),
            run=row.run,
            iteration=row.iteration,
            base=row.base_name,
            base_revision=row.base_revision,
            path=row.path,
            reader=row.reader,
            exported_at=row.exported_at,
            record=Digest(row.record),
            warm_start=row.warm_start and Digest(row.warm_start),
            resumed_from=row.resumed_from and Digest(row.resumed_from),
        )
        found[row.adapter_id].append(summary)
    return found


def _comparisons(connection: Connection, ids: list[int]) -> dict[int, list[ComparisonSummary]]:
    found: dict[int, list[ComparisonSummary]] = {each: [] for each in ids}
    for row in connection.execute(_COMPARISONS, {"ids": ids}):
        summary = ComparisonSummary(
            engine=row.engine,
            verdict=Verdict(row.verdict),
            recipe=row.recipe,
            rounding=row.rounding,
            device=row.device,
            threads=row.threads,
            torch=row.torch,
            base_digest=Digest(row.base_digest),
            served_digest=Digest(row.served_digest),
            surviving=row.surviving,
            rounded_away=row.rounded_away,
            compared_at=row.compared_at,
            record=Digest(row.record),
        )
        found[row.adapter_id].append(summary)
    return found


def _score_runs(connection: Connection, ids: list[int]) -> dict[int, list[ScoreRunSummary]]:
    found: dict[int, list[ScoreRunSummary]] = {each: [] for each in ids}
    rows = connection.execute(_SCORE_RUNS, {"ids": ids}).all()
    if rows:
        for row, summary in zip(rows, score_run_summaries(connection, rows), strict=True):
            found[row.adapter_id].append(summary)
    return found


def _aliases(connection: Connection, digests: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {each: [] for each in digests}
    for row in connection.execute(_ALIASES, {"digests": digests}):
        found[row.after].append(row.name)
    return found


def _equal_tensors(connection: Connection, tensors: set[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {each: [] for each in tensors}
    for of, digest, removed_at in connection.execute(_EQUAL_TENSORS, {"tensors": sorted(tensors)}):
        if removed_at is None:
            found[of].append(digest)
    return found
