"""The questions that the index answers, as queries and as the core's values."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, func, select

from registry.core.alias import AliasMove
from registry.core.digest import Digest
from registry.core.refs import AliasName, RunIteration
from registry.core.summary import AdapterSummary
from registry.index.schema import STALE, adapters, alias_moves, checkpoints, exports, marks, runs
from registry.index.summaries import summaries

_NONE_KNOWN = select(func.max(adapters.c.id)).scalar_subquery().is_(None)
_MARKED = select(marks.c.name).where(marks.c.name == STALE).exists()
_BEHIND = select(_NONE_KNOWN | _MARKED)
"""Asked by every command, so in one statement."""


def is_empty(connection: Connection) -> bool:
    """Whether no adapter is known."""
    return connection.execute(select(func.max(adapters.c.id))).scalar_one() is None


def is_stale(connection: Connection) -> bool:
    """Whether rows came from an older schema, which did not keep all that today's tell."""
    return connection.execute(select(marks.c.name).where(marks.c.name == STALE)).first() is not None


def is_behind(connection: Connection) -> bool:
    """Whether it is empty or stale."""
    found: bool = connection.execute(_BEHIND).scalar_one()
    return found


def adapter(connection: Connection, digest: Digest) -> AdapterSummary | None:
    """One adapter, or None if it is not known."""
    row = connection.execute(select(adapters).where(adapters.c.digest == digest.hex)).one_or_none()
    return None if row is None else summaries(connection, [row])[0]


def digests(connection: Connection) -> list[Digest]:
    """All adapters that are known, removed ones too, sorted."""
    return [
        Digest(each) for each in connection.execute(select(adapters.c.digest).order_by(adapters.c.digest)).scalars()
    ]


def exported(connection: Connection, of: RunIteration, limit: int) -> list[Digest]:
    """Up to `limit` adapters that a run exported at an iteration, sorted; those that were removed if none is there."""
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
    query = query.order_by(adapters.c.digest).limit(limit)
    there = connection.execute(query.where(adapters.c.removed_at.is_(None))).scalars().all()
    return [Digest(found) for found in there or connection.execute(query).scalars()]


def exported_from(connection: Connection, checkpoint: Digest, limit: int) -> list[Digest]:
    """Up to `limit` adapters that a checkpoint was exported as, removed ones too, sorted."""
    of_it = select(checkpoints.c.id).where(checkpoints.c.digest == checkpoint.hex).scalar_subquery()
    query = select(adapters.c.digest).distinct().join_from(exports, adapters).where(exports.c.checkpoint_id == of_it)
    found = connection.execute(query.order_by(adapters.c.digest).limit(limit)).scalars()
    return [Digest(each) for each in found]


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
