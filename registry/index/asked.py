"""Criteria in terms of the index's rows: conditions that a row is held against, and sources, each of which reads from
one database index what may meet them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, exists, select, true
from sqlalchemy.sql.expression import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from registry.core.refs import AliasName
from registry.core.search import NOT_COMPARED, Criteria, Order, ScoreBound, bounds_by_metric
from registry.index.answers import last_move
from registry.index.schema import adapters, checkpoints, exports, faceted, facets, metrics, runs, scores

MOST_LISTS = 100
"""So many lists of facets are read side by side. Where more match, they are no small part of all."""
_OPERATORS: Mapping[str, Callable[[Any, float], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
}
Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for.

    Attributes:
        of_adapter: what a row of `adapters` must be like, but for its exports and its time.
        of_export: what one of its exports must be like, all at once, on a row of `exports`.
        since, until: of the time.
        run: the id of the run.
        lists: the facets that match, none of them twice; None where none is asked for, or more than MOST_LISTS match.
        sources: for every set of criteria that one index answers, the ids of the adapters that meet them.
        beyond_lists: whether anything is asked for but facets and time.
        metric: the id of the metric that is the order, if one is.
        bounds: those on its scores.
    """

    of_adapter: tuple[Condition, ...]
    of_export: tuple[Condition, ...]
    since: str | None
    until: str | None
    run: int | None
    lists: tuple[int, ...] | None
    sources: tuple[Select[Any], ...]
    beyond_lists: bool
    metric: int | None
    bounds: tuple[ScoreBound, ...]

    @property
    def conditions(self) -> list[Condition]:
        """All of it, on a row of `adapters` that was found by its id."""
        there = bare(adapters.c.removed_at).is_(None)
        return [there, *self.times(bare(adapters.c.first_exported_at)), *self.with_exports]

    @property
    def with_exports(self) -> list[Condition]:
        """All of it but the time, on a row of `adapters`."""
        if not self.of_export:
            return list(self.of_adapter)
        of_one = exists().where(exports.c.adapter_id == adapters.c.id, *self.of_export)
        return [*self.of_adapter, of_one.correlate(adapters)]

    def times(self, column: Any) -> list[Condition]:
        """The range of time, on a column."""
        return _between(column, self.since, self.until)


def ask(connection: Connection, criteria: Criteria, order: Order) -> Asked | None:
    """Look up what the criteria name. None where no adapter can meet them, because one of the names is not known."""
    by_metric = bounds_by_metric(criteria.scores)
    run = _id(connection, runs.c.name, criteria.run)
    checkpoint = _id(connection, checkpoints.c.digest, None if criteria.checkpoint is None else criteria.checkpoint.hex)
    named = standing_alias(connection, criteria.alias)
    metric_ids = {name: _id(connection, metrics.c.name, name) for name in by_metric}
    metric = _id(connection, metrics.c.name, order.metric)
    lists = _lists(connection, criteria)
    looked_up = [
        (criteria.run, run),
        (criteria.checkpoint, checkpoint),
        (criteria.alias, named),
        (order.metric, metric),
        *metric_ids.items(),
    ]
    if lists == () or any(asked is not None and found is None for asked, found in looked_up):
        return None

    c, e = adapters.c, exports.c
    of_export = [
        *_equal(bare(e.run_id), run),
        *_equal(bare(e.checkpoint_id), checkpoint),
        *_equal(bare(e.base_name), criteria.base),
        *_iterations(bare(e.iteration), criteria),
    ]
    of_scores = [(metric_ids[name], bounds) for name, bounds in by_metric.items()]
    of_adapter = [
        *_equal(bare(c.digest), named),
        *_equal(bare(c.tensor_digest), criteria.tensors and criteria.tensors.hex),
        *_equal(bare(c.r), criteria.r),
        *_equal(bare(c.lora_alpha), criteria.alpha),
        *_verdict(bare(c.verdict), criteria.verdict),
        *(_has_score(of, bounds) for of, bounds in of_scores),
    ]
    sources = [
        *(select(c.id).where(each) for each in _equal(c.digest, named)),
        *(select(c.id).where(each) for each in _equal(c.tensor_digest, criteria.tensors and criteria.tensors.hex)),
        *(select(e.adapter_id).where(each) for each in _equal(e.checkpoint_id, checkpoint)),
        *(select(e.adapter_id).where(each, *_iterations(e.iteration, criteria)) for each in _equal(e.run_id, run)),
        *(select(scores.c.adapter_id).where(*standing(of, bounds)) for of, bounds in of_scores),
    ]
    if criteria.iterations is not None and run is None:
        sources.append(select(e.adapter_id).where(*_iterations(e.iteration, criteria)))
    beyond_lists = bool(sources)
    time = _between(faceted.c.first_exported_at, criteria.since, criteria.until)
    if lists is not None and len(lists) <= MOST_LISTS:
        sources.append(select(faceted.c.adapter_id).where(faceted.c.facet_id.in_(lists), *time))
    elif time:
        there = _between(c.first_exported_at, criteria.since, criteria.until)
        sources.append(select(c.id).where(c.removed_at.is_(None), *there))
    return Asked(
        tuple(of_adapter),
        tuple(of_export),
        criteria.since,
        criteria.until,
        run,
        lists if lists is None or len(lists) <= MOST_LISTS else None,
        tuple(sources),
        beyond_lists,
        metric,
        tuple(by_metric.get(order.metric or "", ())),
    )


def standing_alias(connection: Connection, name: str | None) -> str | None:
    """The digest of the adapter that an alias names now."""
    last = None if name is None else last_move(connection, AliasName(name))
    return last.after.hex if last is not None and last.after is not None and last.name == name else None


def standing(metric: int | None, bounds: Sequence[ScoreBound] = ()) -> list[Condition]:
    """On rows of `scores`: what stands of a metric within bounds, as a range of the index by value."""
    within = [_OPERATORS[bound.operator](scores.c.value, bound.value) for bound in bounds]
    return [scores.c.metric_id == metric, scores.c.stands == true(), *within]


def bare(column: Any) -> Any:
    """The column as a term that SQLite looks up in no index (https://sqlite.org/optoverview.html, 8.1).

    What a row is held against must not lure the planner away from the index by which the row was found: it does not
    know how many rows a run or a range has.
    """
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def _id(connection: Connection, name: Any, value: str | None) -> int | None:
    """The id of the row that has this name."""
    if value is None:
        return None
    found: int | None = connection.execute(select(name.table.c.id).where(name == value)).scalar_one_or_none()
    return found


def _lists(connection: Connection, criteria: Criteria) -> tuple[int, ...] | None:
    f = facets.c
    wanted = [
        *_equal(f.base_name, criteria.base),
        *_equal(f.r, criteria.r),
        *_equal(f.lora_alpha, criteria.alpha),
        *_equal(f.verdict, "" if criteria.verdict == NOT_COMPARED else criteria.verdict),
    ]
    return tuple(connection.execute(select(f.id).where(*wanted)).scalars()) if wanted else None


def _equal(column: Any, value: Any) -> list[Condition]:
    return [] if value is None else [column == value]


def _between(column: Any, first: Any, after: Any) -> list[Condition]:
    return [*([] if first is None else [column >= first]), *([] if after is None else [column < after])]


def _iterations(column: Any, criteria: Criteria) -> list[Condition]:
    if criteria.iterations is None:
        return []
    first, last = criteria.iterations
    ends = [*([] if first is None else [column >= first]), *([] if last is None else [column <= last])]
    return ends or [column.is_not(None)]


def _verdict(column: Any, verdict: str | None) -> list[Condition]:
    return [column.is_(None)] if verdict == NOT_COMPARED else _equal(column, verdict)


def _has_score(metric: int | None, bounds: Sequence[ScoreBound]) -> Condition:
    within = [_OPERATORS[bound.operator](bare(scores.c.value), bound.value) for bound in bounds]
    of = (scores.c.adapter_id == adapters.c.id, bare(scores.c.metric_id) == metric, bare(scores.c.stands) == true())
    return exists().where(*of, *within).correlate(adapters)
