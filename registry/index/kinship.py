"""The queries behind lineage: rows about many adapters, checkpoints or stretches at once, each found through an index.

A stretch is what exports of a run state alike of base and start. Rows that hold an export are those of `_EXPORT`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, Select, and_, bindparam, exists, func, or_, select

from registry.core.lineage import Kind
from registry.index.schema import (
    adapters,
    alias_moves,
    checkpoints,
    comparisons,
    exports,
    metrics,
    runs,
    score_runs,
    scores,
    stretches,
)

Rows = Iterator[Row[Any]]
_BATCH = 2000  # parameters of one statement
_OF: BindParameter[Any] = bindparam("of", expanding=True)
_ADAPTER = (
    adapters.c.id.label("adapter_id"),
    adapters.c.digest.label("adapter"),
    adapters.c.tensor_digest,
    adapters.c.r,
    adapters.c.lora_alpha,
    adapters.c.verdict,
    adapters.c.removed_at,
)
_EXPORT = (
    exports.c.id.label("export_id"),
    exports.c.stretch_id,
    exports.c.iteration,
    checkpoints.c.id.label("checkpoint_id"),
    checkpoints.c.digest.label("checkpoint"),
    *_ADAPTER,
)


def _exports(*more: Any) -> Select[Any]:
    return (
        select(*_EXPORT, *more)
        .join_from(exports, adapters, exports.c.adapter_id == adapters.c.id)
        .join(checkpoints, exports.c.checkpoint_id == checkpoints.c.id)
    )


_in_run = exports.alias()
_first_of_each = (
    select(_in_run.c.id)
    .where(_in_run.c.stretch_id == stretches.c.id)
    .order_by(_in_run.c.iteration, _in_run.c.exported_at, _in_run.c.record)
    .limit(bindparam("limit"))
    .correlate(stretches)
)
_elsewhere = exists().where(
    exports.c.adapter_id == adapters.c.id,
    or_(exports.c.warm_start.is_(None), exports.c.warm_start.not_in((adapters.c.digest, adapters.c.tensor_digest))),
)
_MATCHING = select(*_ADAPTER, _elsewhere.label("elsewhere"))
_RESUMABLE = (
    select(
        checkpoints.c.id,
        checkpoints.c.digest,
        stretches.c.run,
        func.min(exports.c.iteration).label("iteration"),
    )
    .join_from(checkpoints, exports, exports.c.checkpoint_id == checkpoints.c.id)
    .join(stretches, exports.c.stretch_id == stretches.c.id)
    .group_by(checkpoints.c.id, stretches.c.run)
)
_STARTED = stretches.c.id.label("started")
_ADAPTERS_EXPORTS = _exports().where(exports.c.adapter_id.in_(_OF))
_CHECKPOINTS_EXPORTS = _exports().where(exports.c.checkpoint_id.in_(_OF))
_ONE_OF = select(*_ADAPTER).where(adapters.c.digest.in_(_OF))
_ONE_CHECKPOINT = select(checkpoints.c.id, checkpoints.c.digest).where(checkpoints.c.digest.in_(_OF))
_STRETCHES = select(stretches).where(stretches.c.id.in_(_OF))
_STRETCHES_OF_RUN = select(stretches).where(stretches.c.run.in_(_OF))
_COUNTS = (
    select(exports.c.stretch_id, func.count().label("exports"))
    .where(exports.c.stretch_id.in_(_OF))
    .group_by(exports.c.stretch_id)
)
_LISTED = (
    _exports()
    .join(stretches, exports.c.id.in_(_first_of_each))
    .where(stretches.c.id.in_(_OF))
    .order_by(exports.c.stretch_id, exports.c.iteration, exports.c.exported_at, exports.c.record)
)
_BY_DIGEST = _MATCHING.where(adapters.c.digest.in_(_OF))
_BY_TENSORS = _MATCHING.where(adapters.c.tensor_digest.in_(_OF))
_RESUMABLE_OF = _RESUMABLE.where(checkpoints.c.digest.in_(_OF))
_WARM_STARTED = [
    select(adapters.c.id.label("adapter_id"), _STARTED)
    .join_from(adapters, stretches, stretches.c.warm_start == column)
    .where(adapters.c.id.in_(_OF))
    for column in (adapters.c.digest, adapters.c.tensor_digest)
]
_RESUMED = (
    select(checkpoints.c.id.label("checkpoint_id"), _STARTED)
    .join_from(checkpoints, stretches, stretches.c.resumed_from == checkpoints.c.digest)
    .where(checkpoints.c.id.in_(_OF))
)
_INSIDE = [
    _exports(_STARTED).join(stretches, on).where(exports.c.stretch_id.in_(_OF))
    for on in (
        stretches.c.warm_start == adapters.c.digest,
        stretches.c.warm_start == adapters.c.tensor_digest,
        stretches.c.resumed_from == checkpoints.c.digest,
    )
]
_EVERYWHERE = [
    _exports(_STARTED).join(stretches, and_(said + "" == digest, said > ""))  # so it has to begin with the stretches
    for said, digest in (
        (stretches.c.warm_start, adapters.c.digest),
        (stretches.c.warm_start, adapters.c.tensor_digest),
        (stretches.c.resumed_from, checkpoints.c.digest),
    )
]
_HOW_MANY_STARTED = select(func.count()).where(or_(stretches.c.warm_start > "", stretches.c.resumed_from > ""))
_ALIASES = select(alias_moves.c.after, alias_moves.c.name).where(alias_moves.c.after.in_(_OF), alias_moves.c.stands)
_COMPARISONS = (
    select(comparisons, adapters.c.digest.label("adapter"))
    .join_from(comparisons, adapters)
    .where(comparisons.c.adapter_id.in_(_OF))
)
_SCORE_RUNS = (
    select(score_runs, adapters.c.digest.label("adapter"))
    .join_from(score_runs, adapters)
    .where(score_runs.c.adapter_id.in_(_OF))
)
_SCORES = (
    select(scores.c.score_run_id, metrics.c.name, scores.c.value)
    .join_from(scores, metrics)
    .where(scores.c.score_run_id.in_(_OF))
)
_FIRST_OF_STRETCHES = (
    select(exports.c.stretch_id, func.min(exports.c.exported_at).label("first"))
    .where(exports.c.stretch_id.in_(_OF))
    .group_by(exports.c.stretch_id)
)


def exports_of_adapters(connection: Connection, ids: Collection[int]) -> Rows:
    """Every export of these adapters."""
    return _each(connection, _ADAPTERS_EXPORTS, ids)


def exports_of_checkpoints(connection: Connection, ids: Collection[int]) -> Rows:
    """Every export of these checkpoints."""
    return _each(connection, _CHECKPOINTS_EXPORTS, ids)


def first_exports(connection: Connection, stretch_ids: Collection[int], limit: int) -> Rows:
    """Up to `limit` exports of each stretch, in the order of its iterations."""
    return _each(connection, _LISTED, stretch_ids, limit=limit)


def counts(connection: Connection, stretch_ids: Collection[int]) -> dict[int, int]:
    """How many exports each stretch has."""
    return {row.stretch_id: row.exports for row in _each(connection, _COUNTS, stretch_ids)}


def adapters_called(connection: Connection, digests: Collection[str]) -> Rows:
    """Adapters by digest."""
    return _each(connection, _ONE_OF, digests)


def checkpoints_called(connection: Connection, digests: Collection[str]) -> Rows:
    """Checkpoints by digest."""
    return _each(connection, _ONE_CHECKPOINT, digests)


def stretches_called(connection: Connection, ids: Collection[int]) -> Rows:
    """Stretches by id."""
    return _each(connection, _STRETCHES, ids)


def stretches_of_run(connection: Connection, run: str) -> Rows:
    """The stretches of a run."""
    return _each(connection, _STRETCHES_OF_RUN, [run])


def matching(connection: Connection, stated: Collection[str]) -> Iterator[tuple[str, Row[Any]]]:
    """The adapters of which one of these is the digest or the tensor digest, each with that.

    `elsewhere` tells whether anything else gave the adapter than a run that says it started from it.
    """
    for row in _each(connection, _BY_DIGEST, stated):
        yield row.adapter, row
    for row in _each(connection, _BY_TENSORS, stated):
        yield row.tensor_digest, row


def resumable(connection: Connection, digests: Collection[str]) -> Rows:
    """Checkpoints by digest, once for each run that has it, with its iteration there."""
    return _each(connection, _RESUMABLE_OF, digests)


def warm_started(connection: Connection, adapter_ids: Collection[int]) -> Rows:
    """The stretches, as `started`, that say they started from one of these adapters."""
    for query in _WARM_STARTED:
        yield from _each(connection, query, adapter_ids)


def resumed(connection: Connection, checkpoint_ids: Collection[int]) -> Rows:
    """The stretches, as `started`, that say they were resumed from one of these checkpoints."""
    return _each(connection, _RESUMED, checkpoint_ids)


def started_inside(connection: Connection, stretch_ids: Collection[int]) -> Iterator[tuple[bool, Row[Any]]]:
    """The exports in these stretches from which others `started`; and whether by a resume. Looks at every export."""
    for query, by_resume in zip(_INSIDE, (False, False, True), strict=True):
        for row in _each(connection, query, stretch_ids):
            yield by_resume, row


def started_anywhere(connection: Connection) -> Iterator[tuple[bool, Row[Any]]]:
    """The same for all stretches. Looks at every stretch that states a start."""
    for query, by_resume in zip(_EVERYWHERE, (False, False, True), strict=True):
        for row in connection.execute(query):
            yield by_resume, row


def how_many_started(connection: Connection) -> int:
    """How many stretches state a start."""
    return int(connection.execute(_HOW_MANY_STARTED).scalar_one())


def aliases(connection: Connection, digests: Collection[str]) -> Rows:
    """The aliases that stand for these adapters."""
    return _each(connection, _ALIASES, digests)


def compared(connection: Connection, adapter_ids: Collection[int]) -> Rows:
    """What engines were served, held against these adapters."""
    return _each(connection, _COMPARISONS, adapter_ids)


def scored(connection: Connection, adapter_ids: Collection[int]) -> list[Row[Any]]:
    """Score runs of these adapters."""
    return list(_each(connection, _SCORE_RUNS, adapter_ids))


def values_of(connection: Connection, score_run_ids: Collection[int]) -> dict[int, dict[str, float]]:
    """What each score run measured: metric to value."""
    found: dict[int, dict[str, float]] = {each: {} for each in score_run_ids}
    for row in _each(connection, _SCORES, score_run_ids):
        found[row.score_run_id][row.name] = row.value
    return found


def first_exported(connection: Connection, stretch_ids: Collection[int]) -> dict[int, str]:
    """When the first export of each stretch was made."""
    return {row.stretch_id: row.first for row in _each(connection, _FIRST_OF_STRETCHES, stretch_ids)}


def digests_like(connection: Connection, kind: Kind, prefix: str, limit: int) -> list[str]:
    """Up to `limit` digests of adapters, removed ones too, or of checkpoints, that start so; sorted."""
    column = (checkpoints if kind is Kind.CHECKPOINT else adapters).c.digest
    query = select(column).where(column >= prefix, column < prefix + "g").order_by(column).limit(limit)
    return list(connection.execute(query).scalars())


def knows_run(connection: Connection, name: str) -> bool:
    """Whether there is a run of this name."""
    return connection.execute(select(runs.c.id).where(runs.c.name == name)).first() is not None


def _each(connection: Connection, query: Any, of: Collection[Any], **more: Any) -> Rows:
    values: Sequence[Any] = list(of)
    for start in range(0, len(values), _BATCH):
        yield from connection.execute(query, {"of": values[start : start + _BATCH], **more})
