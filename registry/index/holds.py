"""Who relies on an adapter: the aliases that name it, the score runs that used it, and what was trained from it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, or_, select, union

from registry.core.digest import Digest
from registry.core.holds import Hold, HoldKind
from registry.index.schema import adapters, alias_moves, checkpoints, exports, score_runs


def holds(connection: Connection, digest: Digest) -> list[Hold]:
    """All of them: aliases by name, then score runs by age, then children by digest."""
    standing = select(alias_moves.c.name).where(alias_moves.c.after == digest.hex, alias_moves.c.stands)
    found = [
        Hold(HoldKind.ALIAS, name) for name in connection.execute(standing.order_by(alias_moves.c.folded)).scalars()
    ]
    adapter = connection.execute(select(adapters).where(adapters.c.digest == digest.hex)).one_or_none()
    if adapter is None:
        return found
    used = select(score_runs.c.path).where(score_runs.c.adapter_id == adapter.id)
    by_age = used.order_by(score_runs.c.scored_at, score_runs.c.record)
    found += [Hold(HoldKind.SCORE_RUN, path) for path in connection.execute(by_age).scalars()]
    other = select(adapters.c.id).where(
        adapters.c.tensor_digest == adapter.tensor_digest, adapters.c.id != adapter.id, adapters.c.removed_at.is_(None)
    )
    names = [adapter.digest]
    if connection.execute(other.limit(1)).first() is None:  # or its tensors are there without it
        names.append(adapter.tensor_digest)
    children = union(_started_from(adapter.id, names), _resumed_from(adapter.id)).order_by("digest")
    found += [Hold(HoldKind.CHILD, str(Digest(child))) for child in connection.execute(children).scalars()]
    return found


def _started_from(adapter: int, names: list[str]) -> Select[Any]:
    return _others(adapter).where(exports.c.warm_start.in_(names))


def _resumed_from(adapter: int) -> Select[Any]:
    """Exports of runs that went on from a checkpoint of this adapter, unless that run is known to be the same."""
    mine = exports.alias()
    own = (
        select(mine.c.id)
        .join_from(mine, checkpoints, mine.c.checkpoint_id == checkpoints.c.id)
        .where(
            mine.c.adapter_id == adapter,
            checkpoints.c.digest == exports.c.resumed_from,
            or_(mine.c.run_id.is_(None), exports.c.run_id.is_(None), mine.c.run_id != exports.c.run_id),
        )
    )
    digests = (
        select(checkpoints.c.digest)
        .join_from(mine, checkpoints, mine.c.checkpoint_id == checkpoints.c.id)
        .where(mine.c.adapter_id == adapter)
    )
    return _others(adapter).where(exports.c.resumed_from.in_(digests), own.exists())


def _others(adapter: int) -> Select[Any]:
    there = adapters.c.id != adapter, adapters.c.removed_at.is_(None)
    return select(adapters.c.digest).join_from(exports, adapters).where(*there)
