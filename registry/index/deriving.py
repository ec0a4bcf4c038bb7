"""What follows from several rows together: which move and which score stands, an adapter's verdict, and its facets."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby, islice
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert

from registry.core.comparison import Verdict
from registry.core.summary import Status, standing_verdict
from registry.index.schema import (
    adapters,
    alias_moves,
    comparisons,
    exports,
    faceted,
    facets,
    removals,
    score_runs,
    scores,
)

_BATCH = 2000  # parameters of one statement


def standing_moves(connection: Connection, folded: Collection[str]) -> None:
    """Let the last move of each of these aliases stand, unless it removed the alias."""
    if not folded:
        return
    moved = [{"of_alias": name} for name in sorted(folded)]
    moves = alias_moves.alias()
    last = (
        select(moves.c.id)
        .where(moves.c.folded == bindparam("of_alias"))
        .order_by(moves.c.sequence.desc(), moves.c.moved_at.desc(), moves.c.record.desc())
        .limit(1)
        .scalar_subquery()
    )
    stood = update(alias_moves).where(alias_moves.c.stands, alias_moves.c.folded == bindparam("of_alias"))
    stands = update(alias_moves).where(alias_moves.c.id == last, alias_moves.c.after.is_not(None))
    connection.execute(stood.values(stands=False), moved)
    connection.execute(stands.values(stands=True), moved)


def standing_scores(connection: Connection, digests: Collection[str]) -> None:
    """Let, of each metric of these adapters, the newest value from a score run that completed stand."""
    for ids in _ids(connection, digests):
        newest = func.row_number().over(
            partition_by=(scores.c.adapter_id, scores.c.metric_id),
            order_by=(score_runs.c.scored_at.desc(), score_runs.c.record.desc()),
        )
        ranked = (
            select(scores.c.score_run_id, scores.c.metric_id, newest.label("place"))
            .join_from(scores, score_runs)
            .where(scores.c.adapter_id.in_(ids), score_runs.c.status == Status.COMPLETED.value)
            .subquery()
        )
        first = connection.execute(select(ranked.c.score_run_id, ranked.c.metric_id).where(ranked.c.place == 1)).all()
        connection.execute(update(scores).where(scores.c.adapter_id.in_(ids), scores.c.stands).values(stands=False))
        if first:
            stands = update(scores).where(
                scores.c.score_run_id == bindparam("of_score_run"), scores.c.metric_id == bindparam("of_metric")
            )
            of = [{"of_score_run": score_run, "of_metric": metric} for score_run, metric in first]
            connection.execute(stands.values(stands=True), of)


def adapters_facts(connection: Connection, digests: Collection[str]) -> None:
    """Derive the verdict of these adapters, whether they were removed, and under which facets they are listed."""
    for ids in _ids(connection, digests):
        _set(connection, "removed_at", _removed(connection, ids))
        _set(connection, "verdict", _verdicts(connection, ids))
        connection.execute(delete(faceted).where(faceted.c.adapter_id.in_(ids)))
        of = (
            func.coalesce(exports.c.base_name, "").label("base_name"),
            adapters.c.r,
            adapters.c.lora_alpha,
            adapters.c.use_rslora,
            func.coalesce(adapters.c.verdict, "").label("verdict"),
        )
        there = (adapters.c.id.in_(ids), adapters.c.removed_at.is_(None))
        occurring = select(*of).distinct().join_from(adapters, exports).where(*there)
        names = [column.name for column in of]
        new = insert(facets).from_select(names, occurring)
        connection.execute(new.on_conflict_do_nothing(index_elements=names))
        listed = (
            select(facets.c.id, adapters.c.first_exported_at, adapters.c.id)
            .distinct()
            .join_from(adapters, exports)
            .join(facets, _all_equal(of))
            .where(*there)
        )
        connection.execute(insert(faceted).from_select(["facet_id", "first_exported_at", "adapter_id"], listed))


def _all_equal(of: tuple[Any, ...]) -> Any:
    condition = facets.c.base_name == of[0].element
    for column in of[1:]:
        condition &= facets.c[column.name] == getattr(column, "element", column)
    return condition


def _removed(connection: Connection, ids: list[int]) -> dict[int, str | None]:
    """When adapters were removed; None for those that were exported again since."""
    last = select(removals.c.adapter_id, func.max(removals.c.removed_at)).where(removals.c.adapter_id.in_(ids))
    removed: dict[int, str] = dict(map(tuple, connection.execute(last.group_by(removals.c.adapter_id))))
    if not removed:
        return {}
    newest = select(exports.c.adapter_id, func.max(exports.c.exported_at)).where(exports.c.adapter_id.in_(removed))
    exported: dict[int, str] = dict(map(tuple, connection.execute(newest.group_by(exports.c.adapter_id))))
    return {each: at if exported[each] < at else None for each, at in removed.items()}


def _verdicts(connection: Connection, ids: list[int]) -> dict[int, str | None]:
    c = comparisons.c
    query = select(c.adapter_id, c.engine, c.served_digest, c.verdict).where(c.adapter_id.in_(ids))
    rows = connection.execute(query.order_by(c.adapter_id, c.compared_at, c.record, c.engine))
    return {
        adapter: standing_verdict((engine, served, Verdict(verdict)) for _, engine, served, verdict in compared)
        for adapter, compared in groupby(rows, key=lambda row: row[0])
    }


def _set(connection: Connection, column: str, values: dict[int, str | None]) -> None:
    if values:
        change = update(adapters).where(adapters.c.id == bindparam("of_adapter")).values({column: bindparam("value")})
        connection.execute(change, [{"of_adapter": each, "value": value} for each, value in values.items()])


def _ids(connection: Connection, digests: Collection[str]) -> Iterator[list[int]]:
    rest = iter(sorted(digests))
    while batch := list(islice(rest, _BATCH)):
        yield list(connection.execute(select(adapters.c.id).where(adapters.c.digest.in_(batch))).scalars())
