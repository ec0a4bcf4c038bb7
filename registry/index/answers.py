"""The questions that the index answers, as queries and as the core's values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from registry.core.alias import AliasMove
from registry.core.comparison import Verdict
from registry.core.digest import Digest
from registry.core.model import number
from registry.core.refs import AliasName, RunIteration
from registry.core.summary import AdapterSummary, ComparisonSummary, ExportSummary
from registry.index.schema import adapters, alias_moves, checkpoints, comparisons, exports, runs


def is_empty(connection: Connection) -> bool:
    """Whether no adapter is known."""
    return connection.execute(select(func.max(adapters.c.id))).scalar_one() is None


def adapter(connection: Connection, digest: Digest) -> AdapterSummary | None:
    """One adapter, or None if it is not known."""
    row = connection.execute(select(adapters).where(adapters.c.digest == digest.hex)).one_or_none()
    return None if row is None else _summaries(connection, [row])[0]


def newest(connection: Connection, limit: int) -> list[AdapterSummary]:
    """The adapters that were exported last, newest first."""
    query = select(adapters).order_by(adapters.c.first_exported_at.desc(), adapters.c.digest.desc()).limit(limit)
    return _summaries(connection, connection.execute(query).all())


def exported(connection: Connection, of: RunIteration, limit: int) -> list[Digest]:
    """Up to `limit` adapters that a run exported at an iteration, sorted."""
    run = select(runs.c.id).where(runs.c.name == of.run).scalar_subquery()
    iteration: Any = of.iteration
    if iteration is None:
        stated = select(exports.c.iteration).where(exports.c.run_id == run, exports.c.iteration.is_not(None))
        iteration = stated.order_by(exports.c.iteration.desc()).limit(1).scalar_subquery()
    query = (
        select(adapters.c.digest)
        .distinct()
        .join_from(exports, adapters)
        .where(exports.c.run_id == run, exports.c.iteration == iteration)
    )
    return [Digest(found) for found in connection.execute(query.order_by(adapters.c.digest).limit(limit)).scalars()]


def aliases(connection: Connection) -> list[AliasMove]:
    """Every alias as it stands, by name."""
    return _moves(connection, select(alias_moves).where(alias_moves.c.stands).order_by(alias_moves.c.folded))


def last_move(connection: Connection, name: AliasName) -> AliasMove | None:
    """The last move of the alias that is called this but for case."""
    order = (alias_moves.c.sequence.desc(), alias_moves.c.moved_at.desc(), alias_moves.c.record.desc())
    return next(iter(_moves(connection, _moves_of(name).order_by(*order).limit(1))), None)


def alias_history(connection: Connection, name: AliasName) -> list[AliasMove]:
    """All moves of the alias that is called this but for case, oldest first."""
    order = (alias_moves.c.sequence, alias_moves.c.moved_at, alias_moves.c.record)
    return _moves(connection, _moves_of(name).order_by(*order))


def _moves_of(name: AliasName) -> Select[Any]:
    return select(alias_moves).where(alias_moves.c.folded == name.name.lower())


def _moves(connection: Connection, query: Select[Any]) -> list[AliasMove]:
    return [
        AliasMove(
            name=row.name,
            sequence=row.sequence,
            before=row.before and Digest(row.before),
            after=row.after and Digest(row.after),
            moved_at=row.moved_at,
            moved_by=row.moved_by,
            record=Digest(row.record),
        )
        for row in connection.execute(query)
    ]


def _summaries(connection: Connection, rows: Iterable[Row[Any]]) -> list[AdapterSummary]:
    rows = list(rows)
    by_adapter: dict[int, list[ExportSummary]] = {row.id: [] for row in rows}
    query = (
        select(exports, checkpoints.c.digest.label("checkpoint"), runs.c.name.label("run"))
        .join(checkpoints, exports.c.checkpoint_id == checkpoints.c.id)
        .outerjoin(runs, exports.c.run_id == runs.c.id)
        .where(exports.c.adapter_id.in_(by_adapter))
        .order_by(exports.c.exported_at, exports.c.record)
    )
    for row in connection.execute(query):
        by_adapter[row.adapter_id].append(_export(row))
    compared: dict[int, list[ComparisonSummary]] = {row.id: [] for row in rows}
    found = select(comparisons).where(comparisons.c.adapter_id.in_(compared))
    order = (comparisons.c.compared_at, comparisons.c.record, comparisons.c.engine)
    for row in connection.execute(found.order_by(*order)):
        compared[row.adapter_id].append(_comparison(row))
    named: dict[str, list[str]] = {row.digest: [] for row in rows}
    standing = select(alias_moves).where(alias_moves.c.after.in_(named), alias_moves.c.stands)
    for row in connection.execute(standing.order_by(alias_moves.c.folded)):
        named[row.after].append(row.name)
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
            aliases=tuple(named[row.digest]),
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
