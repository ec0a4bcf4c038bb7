"""Rows from records. Everything here works on many at once and can be repeated: a row that is there already stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, select
from sqlalchemy.dialects.sqlite import insert

from registry.core import records
from registry.core.records import Record
from registry.index import deriving, facts
from registry.index.facts import Row
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
    stretches,
)


class Rows:
    """What records say, gathered to be written at once."""

    def __init__(self, of: Iterable[Record] = ()) -> None:
        self._exports: list[Row] = []
        self._comparisons: list[Row] = []
        self._moves: list[Row] = []
        self._score_runs: list[Row] = []
        self._removals: list[Row] = []
        for record in of:
            self.take(record)

    def take(self, record: Record) -> None:
        """Gather one record. One of a kind that is not known here has no rows.

        Raises:
            MalformedFile: it does not say what a record of its kind must.
        """
        match record.kind:
            case records.EXPORT:
                self._exports.append(facts.export(record))
            case records.COMPARISON:
                self._comparisons += facts.comparison(record)
            case records.ALIAS:
                self._moves.append(facts.alias_move(record))
            case records.SCORE:
                self._score_runs.append(facts.score_run(record))
            case records.REMOVAL:
                self._removals.append(facts.removal(record))

    def write(self, connection: Connection) -> None:
        """Write what was gathered: exports first, since the others are about their adapters."""
        _write_exports(connection, self._exports)
        _write_about(connection, comparisons, self._comparisons, "record", "engine")
        _write_about(connection, removals, self._removals, "record")
        _write_score_runs(connection, self._score_runs)
        _write(connection, _unless_there(alias_moves, "record"), _of(alias_moves, self._moves, stands=False))
        deriving.standing_moves(connection, {row["folded"] for row in self._moves})
        deriving.standing_scores(connection, {row["digest"] for row in self._score_runs})
        deriving.adapters_facts(
            connection, {row["digest"] for rows in (self._exports, self._comparisons, self._removals) for row in rows}
        )


_COLUMNS = {table: frozenset(table.c.keys()) for table in metadata.sorted_tables}
_ADAPTER_ID = select(adapters.c.id).where(adapters.c.digest == bindparam("of_adapter")).scalar_subquery()
_CHECKPOINT_ID = select(checkpoints.c.id).where(checkpoints.c.digest == bindparam("of_checkpoint")).scalar_subquery()
_RUN_ID = select(runs.c.id).where(runs.c.name == bindparam("of_run")).scalar_subquery()
_STRETCH = ("run", "base_name", "base_revision", "warm_start", "resumed_from")
_STRETCH_ID = (
    select(stretches.c.id).where(*(stretches.c[name] == bindparam(f"of_{name}") for name in _STRETCH)).scalar_subquery()
)
_SCORE_RUN_ID = select(score_runs.c.id).where(score_runs.c.record == bindparam("of_score_run")).scalar_subquery()
_METRIC_ID = select(metrics.c.id).where(metrics.c.name == bindparam("of_metric")).scalar_subquery()


def _write_exports(connection: Connection, rows: Sequence[Row]) -> None:
    new = insert(adapters)
    earlier = new.excluded.first_exported_at
    new = new.on_conflict_do_update(
        index_elements=[adapters.c.digest],
        set_={"first_exported_at": earlier},
        where=adapters.c.first_exported_at > earlier,
    )
    first = [{"first_exported_at": row["exported_at"]} for row in rows]
    _write(connection, new, [row | at for row, at in zip(_of(adapters, rows), first, strict=True)])
    _write(
        connection,
        _unless_there(checkpoints, "digest"),
        [{"digest": row["checkpoint"], "bytes": row["checkpoint_bytes"]} for row in rows],
    )
    named = [{"name": row["run"]} for row in rows if row["run"] is not None]
    _write(connection, _unless_there(runs, "name"), named)
    stretch = [{name: row[name] or "" for name in _STRETCH} for row in rows]
    _write(
        connection, _unless_there(stretches, *_STRETCH), list({tuple(each.values()): each for each in stretch}.values())
    )
    ids = [
        {"of_adapter": row["digest"], "of_checkpoint": row["checkpoint"]}
        | {f"of_{name}": value for name, value in of.items()}
        for row, of in zip(rows, stretch, strict=True)
    ]
    _write(
        connection,
        _unless_there(exports, "record").values(
            adapter_id=_ADAPTER_ID, checkpoint_id=_CHECKPOINT_ID, run_id=_RUN_ID, stretch_id=_STRETCH_ID
        ),
        [row | of for row, of in zip(_of(exports, rows), ids, strict=True)],
    )


def _write_about(connection: Connection, table: Table, rows: Sequence[Row], *key: str) -> None:
    """Rows about adapters that the index knows."""
    new = _unless_there(table, *key).values(adapter_id=_ADAPTER_ID)
    about = [{"of_adapter": row["digest"]} for row in rows]
    _write(connection, new, [row | of for row, of in zip(_of(table, rows), about, strict=True)])


def _write_score_runs(connection: Connection, rows: Sequence[Row]) -> None:
    _write_about(connection, score_runs, rows, "record")
    names = sorted({name for row in rows for name in row["scores"]})
    _write(connection, _unless_there(metrics, "name"), [{"name": name} for name in names])
    _write(
        connection,
        _unless_there(scores, "score_run_id", "metric_id").values(
            score_run_id=_SCORE_RUN_ID, metric_id=_METRIC_ID, adapter_id=_ADAPTER_ID
        ),
        [
            {
                "value": value,
                "stands": False,
                "of_score_run": row["record"],
                "of_metric": name,
                "of_adapter": row["digest"],
            }
            for row in rows
            for name, value in row["scores"].items()
        ],
    )


def _unless_there(table: Table, *key: str) -> Any:
    return insert(table).on_conflict_do_nothing(index_elements=list(key))


def _of(table: Table, rows: Iterable[Row], **more: Any) -> list[Row]:
    return [{name: row[name] for name in row.keys() & _COLUMNS[table]} | more for row in rows]


def _write(connection: Connection, statement: Any, rows: list[Row]) -> None:
    if rows:
        connection.execute(statement, rows)
