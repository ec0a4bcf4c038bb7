"""The adapters that a retention policy lets go: found by one query for each thing that keeps one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, func, or_, select

from registry.core.digest import Digest
from registry.core.retention import Expendable, Policy
from registry.index.holds import holds
from registry.index.schema import adapters, alias_moves, checkpoints, exports, runs, score_runs


def expendable(connection: Connection, policy: Policy) -> list[Expendable]:
    """The adapters that may go, oldest first; each as the export of it that comes last in its run."""
    there = select(adapters).where(adapters.c.removed_at.is_(None))
    if policy.before is not None:
        there = there.where(adapters.c.first_exported_at < policy.before)
    kept: set[int] = set()
    if policy.keep_last is not None:
        kept |= set(connection.execute(_last_of_each_run(policy.keep_last)).scalars())
        kept |= set(connection.execute(select(exports.c.adapter_id).where(exports.c.run_id.is_(None))).scalars())
    if policy.keep_aliased:
        named = select(alias_moves.c.after).where(alias_moves.c.stands)
        there = there.where(adapters.c.digest.not_in(named))
    if policy.keep_scored:
        there = there.where(adapters.c.id.not_in(select(score_runs.c.adapter_id)))
    rows = connection.execute(there.order_by(adapters.c.first_exported_at, adapters.c.digest)).all()
    places = _places(connection)
    parents = _may_be_parents(connection)
    return [
        Expendable(Digest(row.digest), *places.get(row.id, (None, None)))
        for row in rows
        if row.id not in kept and not (row.id in parents and _is_held(connection, row.digest, policy))
    ]


def _last_of_each_run(count: int) -> Select[Any]:
    """The adapters at the last iterations of each run that are there; an export without one comes before all."""
    order = (func.coalesce(exports.c.iteration, -1).desc(), exports.c.exported_at.desc(), adapters.c.digest.desc())
    of_run = func.row_number().over(partition_by=(exports.c.run_id, adapters.c.id), order_by=order)
    once = (
        select(exports.c.run_id, exports.c.iteration, exports.c.exported_at, adapters.c.id, adapters.c.digest)
        .add_columns(of_run.label("again"))
        .join_from(exports, adapters)
        .where(exports.c.run_id.is_not(None), adapters.c.removed_at.is_(None))
        .subquery()
    )
    last = (func.coalesce(once.c.iteration, -1).desc(), once.c.exported_at.desc(), once.c.digest.desc())
    place = func.row_number().over(partition_by=once.c.run_id, order_by=last).label("place")
    ranked = select(once.c.id, place).where(once.c.again == 1).subquery()
    return select(ranked.c.id).where(ranked.c.place <= count)


def _places(connection: Connection) -> dict[int, tuple[str | None, int | None]]:
    """Of each adapter, the run and iteration of its last export."""
    query = select(exports.c.adapter_id, runs.c.name, exports.c.iteration).outerjoin(
        runs, exports.c.run_id == runs.c.id
    )
    rows = connection.execute(query.order_by(exports.c.exported_at, exports.c.record))
    return {row.adapter_id: (row.name, row.iteration) for row in rows}


def _may_be_parents(connection: Connection) -> set[int]:
    """Those that something states it started from, by digest, by tensors or by checkpoint: few of all."""
    starts = select(exports.c.warm_start).where(exports.c.warm_start.is_not(None))
    by_name = select(adapters.c.id).where(or_(adapters.c.digest.in_(starts), adapters.c.tensor_digest.in_(starts)))
    resumes = select(exports.c.resumed_from).where(exports.c.resumed_from.is_not(None))
    by_checkpoint = (
        select(exports.c.adapter_id)
        .join_from(exports, checkpoints, exports.c.checkpoint_id == checkpoints.c.id)
        .where(checkpoints.c.digest.in_(resumes))
    )
    return {*connection.execute(by_name).scalars(), *connection.execute(by_checkpoint).scalars()}


def _is_held(connection: Connection, digest: str, policy: Policy) -> bool:
    return any(not policy.overrides(hold) for hold in holds(connection, Digest(digest)))
