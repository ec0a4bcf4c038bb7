"""The questions about scores: which score runs there are, and what they say of the adapters of a training run."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, ScalarSelect, select

from registry.core.comparison import Verdict
from registry.core.digest import Digest
from registry.core.summary import ScorePoint, ScoreRunSummary
from registry.index.schema import adapters, exports, metrics, runs, score_runs, scores
from registry.index.summaries import score_run_summaries


def score_runs_of(connection: Connection, of: Digest | None, limit: int) -> list[ScoreRunSummary]:
    """The score runs that were added last, of one adapter or of all, newest first."""
    query = select(score_runs, adapters.c.digest.label("adapter")).join_from(score_runs, adapters)
    if of is not None:
        query = query.where(adapters.c.digest == of.hex)
    newest = query.order_by(score_runs.c.scored_at.desc(), score_runs.c.record.desc()).limit(limit)
    return score_run_summaries(connection, connection.execute(newest).all())


def run_scores(connection: Connection, run: str, metric: str) -> list[ScorePoint]:
    """The scores of one metric that stand for what a run exported, by iteration (None first) and adapter."""
    of_metric = select(metrics.c.id).where(metrics.c.name == metric).scalar_subquery()
    # One value at a time, by adapter and metric: in a join, SQLite might begin with the scores of every run's adapters.
    value = (
        select(scores.c.value)
        .where(scores.c.adapter_id == exports.c.adapter_id, scores.c.metric_id == of_metric, scores.c.stands)
        .scalar_subquery()
    )
    query = (
        select(exports.c.iteration, adapters.c.digest, value.label("value"), adapters.c.verdict)
        .distinct()
        .join_from(exports, adapters)
        .where(exports.c.run_id == _run(run), value.is_not(None))
        .order_by(exports.c.iteration, adapters.c.digest)
    )
    return [
        ScorePoint(row.iteration, Digest(row.digest), row.value, row.verdict and Verdict(row.verdict))
        for row in connection.execute(query)
    ]


def run_metrics(connection: Connection, run: str, limit: int) -> list[str] | None:
    """Up to `limit` metrics of which scores stand for a run's adapters, by name; None if there is no such run."""
    if connection.execute(select(runs.c.id).where(runs.c.name == run)).first() is None:
        return None
    exported = select(exports.c.adapter_id).where(exports.c.run_id == _run(run))
    standing = select(scores.c.metric_id).where(scores.c.adapter_id.in_(exported), scores.c.stands)
    query = select(metrics.c.name).where(metrics.c.id.in_(standing)).order_by(metrics.c.name).limit(limit)
    return list(connection.execute(query).scalars())


def _run(name: str) -> ScalarSelect[Any]:
    return select(runs.c.id).where(runs.c.name == name).scalar_subquery()
