"""The queries and updates of the index, in terms of the core's values. No SQL is written anywhere else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, insert, select, update

from registry.core import records
from registry.core.comparison import Verdict
from registry.core.digest import Digest
from registry.core.model import WEIGHTS, number
from registry.core.records import Record
from registry.core.summary import AdapterSummary, ComparisonSummary, ExportSummary
from registry.index.database import Database
from registry.index.schema import adapters, checkpoints, comparisons, exports, runs


class Index:
    """The index over one database. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, new: Iterable[Record]) -> None:
        """Derive rows from records, an adapter's exports first. A record that is there already changes nothing."""
        with self._database.writing() as connection:
            for record in new:
                if record.kind == records.EXPORT:
                    _add_export(connection, record)
                elif record.kind == records.COMPARISON:
                    _add_comparison(connection, record)

    def adapter(self, digest: Digest) -> AdapterSummary | None:
        """One adapter, or None if the index has not heard of it."""
        with self._database.reading() as connection:
            row = connection.execute(select(adapters).where(adapters.c.digest == digest.hex)).one_or_none()
            return None if row is None else _summaries(connection, [row])[0]

    def newest(self, limit: int) -> list[AdapterSummary]:
        """The adapters that were exported last, newest first."""
        query = select(adapters).order_by(adapters.c.first_exported_at.desc(), adapters.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            return _summaries(connection, connection.execute(query).all())


def _add_export(connection: Connection, record: Record) -> None:
    known = select(exports.c.id).where(exports.c.record == record.digest.hex)
    if connection.execute(known).first() is not None:
        return
    facts = record.predicate
    adapter, lora, run, base = facts["adapter"], facts["lora"], facts["run"], facts["base"]
    when = facts["exported_at"]
    adapter_id = _row(
        connection,
        adapters,
        {"digest": record.subject.hex},
        {
            "tensor_digest": adapter["tensor_digest"],
            "bytes": adapter[WEIGHTS]["bytes"],
            "modules": adapter["modules"],
            "r": lora["r"],
            "lora_alpha": lora["lora_alpha"],
            "use_rslora": lora.get("use_rslora", False),
            "first_exported_at": when,
        },
    )
    connection.execute(
        update(adapters)
        .where(adapters.c.id == adapter_id, adapters.c.first_exported_at > bindparam("earlier"))
        .values(first_exported_at=bindparam("earlier")),
        {"earlier": when},
    )
    checkpoint = facts["checkpoint"]
    connection.execute(
        insert(exports).values(
            record=record.digest.hex,
            adapter_id=adapter_id,
            checkpoint_id=_row(
                connection, checkpoints, {"digest": checkpoint["sha256"]}, {"bytes": checkpoint["bytes"]}
            ),
            run_id=None if run["id"] is None else _row(connection, runs, {"name": run["id"]}, {}),
            iteration=run["iteration"],
            base_name=base["name"],
            base_revision=base["revision"],
            path=checkpoint["path"],
            reader=checkpoint["reader"],
            exported_at=when,
        )
    )


def _add_comparison(connection: Connection, record: Record) -> None:
    facts = record.predicate
    known = select(comparisons.c.engine).where(comparisons.c.record == record.digest.hex)
    engines = set(connection.execute(known).scalars())
    adapter = select(adapters.c.id).where(adapters.c.digest == record.subject.hex).scalar_subquery()
    for engine in facts["engines"]:
        if engine["engine"] in engines:
            continue
        survival = engine["survival"] or {}
        connection.execute(
            insert(comparisons).values(
                record=record.digest.hex,
                adapter_id=adapter,
                engine=engine["engine"],
                verdict=engine["verdict"],
                recipe=facts["recipe"],
                rounding=engine["stated"].get("rounding"),
                device=facts["conditions"]["device"],
                threads=facts["conditions"]["threads"],
                torch=facts["conditions"]["torch"],
                base_digest=facts["base_digest"],
                served_digest=engine["served_digest"],
                surviving=survival.get("projected"),
                rounded_away=survival.get("rounded_away"),
                compared_at=facts["compared_at"],
            )
        )


def _row(connection: Connection, table: Table, key: dict[str, Any], rest: dict[str, Any]) -> int:
    """The id of the row with this unique key, which is made from `key` and `rest` where there is none."""
    ((column, value),) = key.items()
    found: int | None = connection.execute(select(table.c.id).where(table.c[column] == value)).scalar_one_or_none()
    if found is not None:
        return found
    made: int = connection.execute(insert(table).values(**key, **rest).returning(table.c.id)).scalar_one()
    return made


def _summaries(connection: Connection, rows: Iterable[Row[Any]]) -> list[AdapterSummary]:
    rows = list(rows)
    by_adapter: dict[int, list[ExportSummary]] = {row.id: [] for row in rows}
    query = (
        select(exports, checkpoints.c.digest.label("checkpoint"), runs.c.name.label("run"))
        .join(checkpoints, exports.c.checkpoint_id == checkpoints.c.id)
        .outerjoin(runs, exports.c.run_id == runs.c.id)
        .where(exports.c.adapter_id.in_(by_adapter))
        .order_by(exports.c.exported_at, exports.c.id)
    )
    for row in connection.execute(query):
        by_adapter[row.adapter_id].append(_export(row))
    compared: dict[int, list[ComparisonSummary]] = {row.id: [] for row in rows}
    found = select(comparisons).where(comparisons.c.adapter_id.in_(compared))
    for row in connection.execute(found.order_by(comparisons.c.compared_at, comparisons.c.id)):
        compared[row.adapter_id].append(_comparison(row))
    equal: dict[str, list[str]] = {}
    twins = select(adapters.c.tensor_digest, adapters.c.digest).where(
        adapters.c.tensor_digest.in_({row.tensor_digest for row in rows})
    )
    for tensors, digest in connection.execute(twins.order_by(adapters.c.digest)):
        equal.setdefault(tensors, []).append(digest)
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
            same_tensors=tuple(Digest(other) for other in equal[row.tensor_digest] if other != row.digest),
        )
        for row in rows
    ]


def _export(row: Row[Any]) -> ExportSummary:
    return ExportSummary(
        checkpoint=Digest(row.checkpoint),
        run=row.run,
        iteration=row.iteration,
        base=row.base_name,
        base_revision=row.base_revision,
        path=row.path,
        reader=row.reader,
        exported_at=row.exported_at,
        record=Digest(row.record),
    )


def _comparison(row: Row[Any]) -> ComparisonSummary:
    return ComparisonSummary(
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
