"""All rows of the index anew, in one transaction, and how they differed. Readers see the old ones until it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from sqlalchemy import Connection, FromClause, Select, bindparam, column, delete, except_, func, select, table, text

from registry.core.errors import MalformedFile
from registry.core.records import Record
from registry.core.summary import IndexChange
from registry.index.schema import (
    adapters,
    alias_moves,
    checkpoints,
    comparisons,
    exports,
    metadata,
    metrics,
    removals,
    runs,
    score_runs,
    scores,
)
from registry.index.writing import Rows

_BATCH = 2000  # records
_CACHE = 256 << 10  # KiB of the database that are kept in memory meanwhile
_UNUSED = (  # database indexes that nothing asks here: made at the end, from sorted keys, in a fraction of the time
    "ix_adapters_tensor_digest",
    "ix_adapters_removed_at_first_exported_at_digest",
    "ix_exports_checkpoint_id",
    "ix_exports_warm_start",
    "ix_exports_resumed_from",
    "ix_exports_run_id_iteration",
    "ix_exports_iteration",
    "ix_score_runs_scored_at_record",
    "ix_scores_metric_id_stands_value_adapter_id",
)


def _all_but(of: FromClause, *names: str) -> list[Any]:
    return [each for each in of.c if each.name not in names]


_IDS = ("id", "adapter_id", "checkpoint_id", "run_id", "score_run_id", "metric_id", "stretch_id")
_FACTS: dict[str, tuple[Select[Any], int]] = {  # what the rows of a kind say, and how many columns in front are the key
    "adapters": (select(*_all_but(adapters, "id")), 1),
    "exports": (
        select(
            *_all_but(exports, *_IDS),
            adapters.c.digest.label("adapter"),
            checkpoints.c.digest.label("checkpoint"),
            checkpoints.c.bytes,
            runs.c.name.label("run"),
        )
        .join_from(exports, adapters)
        .join(checkpoints, exports.c.checkpoint_id == checkpoints.c.id)
        .outerjoin(runs, exports.c.run_id == runs.c.id),
        1,
    ),
    "comparisons": (
        select(
            comparisons.c.record,
            comparisons.c.engine,
            *_all_but(comparisons, *_IDS, "record", "engine"),
            adapters.c.digest.label("adapter"),
        ).join_from(comparisons, adapters),
        2,
    ),
    "alias moves": (select(*_all_but(alias_moves, "id")), 1),
    "score runs": (
        select(*_all_but(score_runs, *_IDS), adapters.c.digest.label("adapter")).join_from(score_runs, adapters),
        1,
    ),
    "scores": (
        select(score_runs.c.record, metrics.c.name, *_all_but(scores, *_IDS))
        .join_from(scores, score_runs, scores.c.score_run_id == score_runs.c.id)
        .join(metrics, scores.c.metric_id == metrics.c.id),
        2,
    ),
    "removals": (
        select(*_all_but(removals, *_IDS), adapters.c.digest.label("adapter")).join_from(removals, adapters),
        1,
    ),
}


def rebuild(
    connection: Connection, new: Iterable[Record], refused: Callable[[Record, MalformedFile], None]
) -> tuple[IndexChange, ...]:
    """Replace all rows by those of `new`, in which an adapter's exports come before all else about it.

    Args:
        connection: in a write transaction.
        new: every record.
        refused: told of each record that does not say what one of its kind must; it is left out.
    """
    for number, (facts, _) in enumerate(_FACTS.values()):
        known = facts.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        connection.execute(text(f"CREATE TEMP TABLE before_{number} AS {known}"))
    for each in reversed(metadata.sorted_tables):
        connection.execute(delete(each))
    with _roomier_cache(connection), _without_indexes(connection):
        for batch in _batches(new):
            rows = Rows()
            for record in batch:
                try:
                    rows.take(record)
                except MalformedFile as error:
                    refused(record, error)
            rows.write(connection)
    changes = tuple(_change(connection, number, kind) for number, kind in enumerate(_FACTS))
    for number in range(len(_FACTS)):
        connection.execute(text(f"DROP TABLE before_{number}"))
    return changes


@contextmanager
def _without_indexes(connection: Connection) -> Iterator[None]:
    """Drop what is in _UNUSED, and make it again as it was. All in the one transaction: no one else sees it."""
    of = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND name IN :names")
    dropped = connection.execute(of.bindparams(bindparam("names", _UNUSED, expanding=True))).all()
    for name, _ in dropped:
        connection.exec_driver_sql(f"DROP INDEX {name}")
    yield
    for _, statement in dropped:
        connection.exec_driver_sql(statement)


@contextmanager
def _roomier_cache(connection: Connection) -> Iterator[None]:
    """Keys come in no order, so that all of what is written is needed again and again."""
    usual = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
    connection.exec_driver_sql(f"PRAGMA cache_size = -{_CACHE}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA cache_size = {usual}")


def _change(connection: Connection, number: int, kind: str) -> IndexChange:
    after, keys = _FACTS[kind]
    names = [each.name for each in after.selected_columns]
    columns: list[Any] = [column(name) for name in names]
    before = select(*columns).select_from(table(f"before_{number}"))
    now = after.subquery()

    def count(query: Any) -> int:
        found: int = connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
        return found

    unknown = count(except_(select(*list(now.c)[:keys]), before.with_only_columns(*columns[:keys])))
    different = count(except_(select(now), before))
    gone = count(except_(before, select(now)))
    changed = different - unknown
    return IndexChange(kind, rows=count(after), added=unknown, removed=gone - changed, changed=changed)


def _batches(new: Iterable[Record]) -> Iterator[list[Record]]:
    rest = iter(new)
    while batch := list(islice(rest, _BATCH)):
        yield batch
