"""Searches: the first adapters, in some order, that meet some criteria.

Four ways of answering read no more than a bounded number of rows, whatever the size of the index:

- Where only facts are asked for that `facets` combines, and a time, and time is the order, the adapters come in that
  order out of the lists of the combinations that match, or out of the index by time: no more of them than the limit.
- Where some criterion, or several that one index answers, are met by FEW adapters at most, those are read, held against
  the rest, and sorted. The candidates are counted first, and no further than FEW.
- Where two criteria, on scores or facets, are each met by at most a dozen times FEW, and together by FEW, those are
  read.
- Else every criterion is met by many. Then the adapters are read in the order asked for until enough were found.

The last is short where what is asked for is met often. It has no bound where each of several criteria is met often and
all of them together hardly ever: all that the order lists is read then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, func, intersect, select

from registry.core.search import Criteria, Order
from registry.core.summary import AdapterSummary
from registry.index.asked import Asked, ask, bare, standing, standing_alias
from registry.index.schema import adapters, exports, faceted, facets, metrics, runs, scores
from registry.index.summaries import summaries

FEW = 5000
"""So many adapters are read, held against conditions and sorted in about 20 ms."""
_DOZEN = 12


def find(connection: Connection, criteria: Criteria, order: Order, limit: int, few: int = FEW) -> list[AdapterSummary]:
    """The first adapters in this order that meet all criteria. Those that were removed are not among them.

    Args:
        connection: in a read transaction.
        criteria: what they must be like.
        order: in which they are listed.
        limit: how many at most.
        few: so many candidates are read and sorted. The answer does not depend on it.
    """
    asked = ask(connection, criteria, order)
    if asked is None:
        return []
    by_time = order.metric is None and order.by != "iteration"
    source = None if by_time and not asked.beyond_lists else _smallest(connection, asked, few)
    if source is None:
        source = _met_together(connection, asked, few)
    if source is not None:
        rows: Iterable[Row[Any]] = connection.execute(_sorted_from(source, asked, order).limit(limit)).all()
    elif by_time and asked.lists is not None:
        rows = _merged(connection, asked, order, limit)
    elif by_time:
        rows = connection.execute(_by_time(asked, order).limit(limit)).all()
    elif order.by == "iteration":
        with connection.execute(_by_iteration(asked, order)) as found:
            rows = list(islice(_once(found), limit))
    else:
        rows = connection.execute(_by_score(asked, order).limit(limit)).all()
    return summaries(connection, rows)


def unknown(connection: Connection, criteria: Criteria, order: Order) -> list[str]:
    """What criteria and order name that the index has never heard of, a clause each."""
    named = [("run", criteria.run, runs.c.name), ("base", criteria.base, facets.c.base_name)]
    measured = dict.fromkeys([bound.metric for bound in criteria.scores] + ([order.metric] if order.metric else []))
    named += [("metric", metric, metrics.c.name) for metric in measured]
    found = [
        f"no {what} is known as {name!r}"
        for what, name, column in named
        if name is not None and connection.execute(select(column).where(column == name).limit(1)).first() is None
    ]
    if criteria.alias is not None and standing_alias(connection, criteria.alias) is None:
        found.append(f"no alias is called {criteria.alias!r}")
    return found


def _smallest(connection: Connection, asked: Asked, few: int) -> Select[Any] | None:
    """The source that has the fewest rows, if that is few."""
    best: Select[Any] | None = None
    fewest = few + 1
    for source in asked.sources:
        count = _count(connection, source, fewest)
        if count < fewest:
            best, fewest = source, count
    return best


def _met_together(connection: Connection, asked: Asked, few: int) -> Select[Any] | None:
    """What two sources have in common, if that is few, and they are not too large to be compared.

    Only sources whose index holds the adapters' ids itself are: the others would look up a row for each.
    """
    most = _DOZEN * few
    covered = [source for source in asked.sources if source.selected_columns[0].table in (scores, faceted)]
    if len(covered) <= 1:
        return None
    counted = sorted((_count(connection, source, most + 1), number) for number, source in enumerate(covered))[:2]
    if counted[-1][0] > most:
        return None
    one, other = (covered[number] for _, number in counted)
    both = intersect(one, other).subquery()
    common = select(both.c[0])
    return common if _count(connection, common, few + 1) <= few else None


def _count(connection: Connection, source: Select[Any], most: int) -> int:
    found: int = connection.execute(select(func.count()).select_from(source.limit(most).subquery())).scalar_one()
    return found


def _sorted_from(source: Select[Any], asked: Asked, order: Order) -> Select[Any]:
    """What a source has, held against all conditions, and sorted."""
    key = _key(asked, order)
    query = select(adapters).where(adapters.c.id.in_(source), *asked.conditions)
    if key is not adapters.c.first_exported_at:
        query = query.where(key.is_not(None))
    return query.order_by(*_in(order, key))


def _key(asked: Asked, order: Order) -> Any:
    """By what an adapter is sorted, on a row of `adapters`."""
    if order.by == "iteration":
        extreme = func.max if order.descending else func.min
        of = (exports.c.adapter_id == adapters.c.id, *asked.of_export)
        return select(extreme(exports.c.iteration)).where(*of).correlate(adapters).scalar_subquery()
    if asked.metric is not None:
        mine = (scores.c.adapter_id == adapters.c.id, bare(scores.c.metric_id) == asked.metric, bare(scores.c.stands))
        return select(scores.c.value).where(*mine).correlate(adapters).scalar_subquery()
    return adapters.c.first_exported_at


def _by_time(asked: Asked, order: Order) -> Select[Any]:
    """From the index of what is there, by time."""
    time = adapters.c.first_exported_at
    query = select(adapters).where(adapters.c.removed_at.is_(None), *asked.times(time), *asked.with_exports)
    return query.order_by(*_in(order, time))


def _merged(connection: Connection, asked: Asked, order: Order, limit: int) -> list[Row[Any]]:
    """From the lists of the facets that match, each by time. An adapter may be on several: its exports may differ."""
    time = faceted.c.first_exported_at
    conditions = (faceted.c.facet_id == bindparam("facet"), *asked.times(time), *asked.with_exports)
    query = select(adapters).join_from(faceted, adapters).where(*conditions).order_by(*_in(order, time)).limit(limit)
    with ExitStack() as stack:
        lists = [stack.enter_context(connection.execute(query, {"facet": facet})) for facet in asked.lists or ()]
        merged = heapq.merge(*lists, key=lambda row: (row.first_exported_at, row.digest), reverse=order.descending)
        return list(islice(_once(merged), limit))


def _by_iteration(asked: Asked, order: Order) -> Select[Any]:
    """From the index of exports by iteration, of one run or of all; an adapter as often as it was exported."""
    conditions = [exports.c.iteration.is_not(None), *asked.of_export, *asked.conditions]
    if asked.run is not None:
        conditions.append(exports.c.run_id == asked.run)
    query = select(adapters).join_from(exports, adapters).where(*conditions)
    return query.order_by(*_in(order, exports.c.iteration))


def _by_score(asked: Asked, order: Order) -> Select[Any]:
    """From the index of what stands of a metric, by value."""
    query = select(adapters).join_from(scores, adapters).where(*standing(asked.metric, asked.bounds), *asked.conditions)
    return query.order_by(*_in(order, scores.c.value))


def _in(order: Order, key: Any) -> tuple[ColumnElement[Any], ...]:
    """In the order of a key, then of digests: an index made anew answers the same, to the last place."""
    if order.descending:
        return key.desc(), adapters.c.digest.desc()
    return key.asc(), adapters.c.digest.asc()


def _once(rows: Iterable[Row[Any]]) -> Iterator[Row[Any]]:
    """Each adapter where it comes first."""
    seen: set[int] = set()
    for row in rows:
        if row.id not in seen:
            seen.add(row.id)
            yield row
