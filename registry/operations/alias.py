"""Alias: one move of a movable name, compared and set while nobody else can move it. Every move is a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.core import records
from registry.core.alias import AliasMove
from registry.core.digest import Digest
from registry.core.errors import Conflict, NotFound, Refused
from registry.core.records import Record
from registry.core.refs import NO_ADAPTER, AliasName
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index, Moving

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
        NotFound: it is to be removed and names no adapter.
        Conflict: it does not name the adapter that was expected.
    """
    with index.moving() as moving:
        announced = _announced(store, moving)
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


def _announced(store: Store, moving: Moving) -> list[Record]:
    """Moves by those who were killed since anyone looked: they count."""
    found = [record for record in store.unsettled(lambda _: None) if record.kind == records.ALIAS]
    for record in found:
        store.put_record(record)
    moving.add(found)
    return found
