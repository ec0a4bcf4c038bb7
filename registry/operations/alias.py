"""Alias: one move of a movable name, compared and set while nobody else can move it. Every move is a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.core import records
from registry.core.alias import AliasMove
from registry.core.digest import Digest
from registry.core.errors import Conflict, NotFound, Refused
from registry.core.refs import NO_ADAPTER, AliasName
from registry.operations.gone import not_found
from registry.operations.settle import catch_up
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Expectation:
    """The adapter that an alias must name for it to be moved; None for no adapter."""

    digest: Digest | None


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of moving an alias. Where it stood there already, `changed` is false and `move` is what brought it."""

    move: AliasMove
    changed: bool


def move(
    store: Store,
    index: Index,
    name: AliasName,
    to: Digest | None,
    *,
    now: str,
    who: str,
    expected: Expectation | None = None,
) -> Moved:
    """Let an alias name the adapter `to`, or, with None, no adapter any more.

    The record is kept before the index's transaction ends, so that the next one who holds the lock finds it: either in
    the index, or, where this process is killed, among what was announced.

    Raises:
        Refused: another alias differs from this one in case only.
        NotFound: it is to be removed and names no adapter, or the adapter has just been removed.
        Conflict: it does not name the adapter that was expected.
    """
    with index.moving() as moving:
        announced = catch_up(store, moving)
        if to is not None and not store.contains(to):
            raise not_found(store, to)
        last = moving.last(name)
        before = None if last is None else last.after
        if last is not None and before is not None and last.name != name.name:
            raise Refused("differs only in case from an alias that there is", key=name.name, found=last.name)
        if expected is not None and expected.digest != before:
            raise Conflict(
                "the alias does not name what was expected",
                key=name.name,
                found=before or NO_ADAPTER,
                expected=expected.digest or NO_ADAPTER,
                hint="Look at `aorlta-reg alias history` before moving it",
            )
        subject = to or before
        if subject is None:
            raise NotFound("no alias has this name", key=name.name)
        if last is not None and to == before:
            return Moved(last, changed=False)
        sequence = 1 if last is None else last.sequence + 1
        predicate = {
            "format": FORMAT,
            "alias": name.name,
            "sequence": sequence,
            "from": before and before.hex,
            "to": to and to.hex,
            "moved_at": now,
            "moved_by": who,
        }
        record = records.make(records.ALIAS, subject, predicate)
        store.put_record(record)
        moving.add([record])
    for each in (*announced, record):
        store.settle(each)
    return Moved(AliasMove(name.name, sequence, before, to, now, who, record.digest), changed=True)
