"""Rows from records. Everything here works on many at once and can be repeated: a row that is there already stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, select, update
from sqlalchemy.dialects.sqlite import insert

from registry.core import records
from registry.core.records import Record
from registry.index import facts
from registry.index.facts import Row
from registry.index.schema import adapters, alias_moves, checkpoints, comparisons, exports, metadata, runs


class Rows:
    """What records say, gathered to be written at once."""

    def __init__(self, of: Iterable[Record] = ()) -> None:
        self._exports: list[Row] = []
        self._comparisons: list[Row] = []
        self._moves: list[Row] = []
        for record in of:
            self.take(record)

    def take(self, record: Record) -> None:
        """Gather one record. One of a kind that is not known here has no rows.

        Raises:
            MalformedFile: it does not say what a record of its kind must.
        """
        if record.kind == records.EXPORT:
            self._exports.append(facts.export(record))
        elif record.kind == records.COMPARISON:
            self._comparisons += facts.comparison(record)
        elif record.kind == records.ALIAS:
            self._moves.append(facts.alias_move(record))

    def write(self, connection: Connection) -> None:
        """Write what was gathered: exports first, since the others are about their adapters."""
        _write_exports(connection, self._exports)
        _write_comparisons(connection, self._comparisons)
        _write_moves(connection, self._moves)


_COLUMNS = {table: frozenset(table.c.keys()) for table in metadata.sorted_tables}
_ADAPTER_ID = select(adapters.c.id).where(adapters.c.digest == bindparam("of_adapter")).scalar_subquery()
_CHECKPOINT_ID = select(checkpoints.c.id).where(checkpoints.c.digest == bindparam("of_checkpoint")).scalar_subquery()
_RUN_ID = select(runs.c.id).where(runs.c.name == bindparam("of_run")).scalar_subquery()


def _write_exports(connection: Connection, rows: Sequence[Row]) -> None:
    new = insert(adapters)
    earlier = new.excluded.first_exported_at
    new = new.on_conflict_do_update(
        index_elements=[adapters.c.digest],
        set_={"first_exported_at": earlier},
        where=adapters.c.first_exported_at > earlier,
    )
    _execute(connection, new, [_of(adapters, row) | {"first_exported_at": row["exported_at"]} for row in rows])
    _execute(
        connection,
        _unless_there(checkpoints, "digest"),
        [{"digest": row["checkpoint"], "bytes": row["checkpoint_bytes"]} for row in rows],
    )
    named = [{"name": row["run"]} for row in rows if row["run"] is not None]
    _execute(connection, _unless_there(runs, "name"), named)
    _execute(
        connection,
        _unless_there(exports, "record").values(adapter_id=_ADAPTER_ID, checkpoint_id=_CHECKPOINT_ID, run_id=_RUN_ID),
        [
            _of(exports, row) | {"of_adapter": row["digest"], "of_checkpoint": row["checkpoint"], "of_run": row["run"]}
            for row in rows
        ],
    )


def _write_comparisons(connection: Connection, rows: Sequence[Row]) -> None:
    new = _unless_there(comparisons, "record", "engine").values(adapter_id=_ADAPTER_ID)
    _execute(connection, new, [_of(comparisons, row) | {"of_adapter": row["digest"]} for row in rows])


def _write_moves(connection: Connection, rows: Sequence[Row]) -> None:
    new = _unless_there(alias_moves, "record")
    _execute(connection, new, [_of(alias_moves, row) | {"stands": False} for row in rows])
    moved = [{"of_alias": folded} for folded in sorted({row["folded"] for row in rows})]
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
    _execute(connection, stood.values(stands=False), moved)
    _execute(connection, stands.values(stands=True), moved)


def _unless_there(table: Table, *key: str) -> Any:
    return insert(table).on_conflict_do_nothing(index_elements=list(key))


def _of(table: Table, row: Row) -> Row:
    return {name: row[name] for name in row.keys() & _COLUMNS[table]}


def _execute(connection: Connection, statement: Any, rows: list[Row]) -> None:
    if rows:
        connection.execute(statement, rows)
