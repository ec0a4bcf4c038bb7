"""Remove: one adapter out of the store, while nobody can begin to rely on it. The record of that stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.core import jsontext, records
from registry.core.digest import Digest
from registry.core.errors import Conflict, IntegrityError, NotFound
from registry.core.holds import Hold, HoldKind
from registry.core.layout import ADAPTER_FILES
from registry.core.records import Record
from registry.core.times import later
from registry.operations import gone, seal
from registry.operations.settle import catch_up
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index

FORMAT = 1
_SHOWN = 10
_WAY_OUT = {
    HoldKind.ALIAS: "move or remove the aliases (`aorlta-reg alias remove NAME`)",
    HoldKind.SCORE_RUN: "keep it, since its score runs' results would be about nothing",
    HoldKind.CHILD: "remove what was trained from it first",
}


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of `remove`.

    Attributes:
        digest: the adapter that is gone.
        bytes: how long its files were together.
        removed_at: when: later than all its exports, by whatever clock they were dated.
        reason: why, as it was said.
        overrode: who relied on it all the same.
        record: that says so, in the store.
    """

    digest: Digest
    bytes: int
    removed_at: str
    reason: str | None
    overrode: tuple[Hold, ...]
    record: Digest


def remove(
    store: Store,
    index: Index,
    digest: Digest,
    *,
    now: str,
    who: str,
    reason: str | None = None,
    force: bool = False,
    overrides: Callable[[Hold], bool] = lambda _: False,
) -> Removed:
    """Delete an adapter and record that. Its records stay, and its checkpoint can be added again.

    From the look at who relies on it until the index knows that it is gone, the index's write lock is held. The record
    is announced before the files go: where this process is killed, the next command that mends the index finishes.

    Args:
        store: where it lies.
        index: knows who relies on it.
        digest: which one.
        now: the time, for the record.
        who: whoever does it, for the record.
        reason: why, for the record.
        force: remove it even where somebody relies on it.
        overrides: remove it even where one relies on it of which this is true.

    Raises:
        NotFound: no such adapter; where it was removed, the error says when and by whom.
        Conflict: an alias names it, a score run used it, or an adapter that is there was trained from it.
        IntegrityError: a record of it is damaged, or it is damaged and has none.
        StorageError.
    """
    reason = jsontext.sayable(reason) if reason and not reason.isspace() else None
    with index.moving() as moving:
        settled = catch_up(store, moving)
        if not store.contains(digest):
            raise gone.not_found(store, digest)
        overrode = tuple(moving.holds(digest))
        if not force and not all(map(overrides, overrode)):
            raise _conflict(digest, overrode)
        exports = _exports(store, digest)
        nbytes, at = size(store, digest), later(now, _dates(store, digest))
        predicate = {
            "format": FORMAT,
            "reason": reason,
            "overrode": [{"kind": hold.kind.value, "name": hold.name} for hold in overrode],
            "bytes": nbytes,
            "removed_at": at,
            "removed_by": who,
        }
        record = records.make(records.REMOVAL, digest, predicate)
        moving.add([*exports, record])
        store.put_record(record)
        store.remove(digest)
    for each in (*settled, *exports, record):
        store.settle(each)
    return Removed(digest, nbytes, at, reason, overrode, record.digest)


def _conflict(digest: Digest, holds: Sequence[Hold]) -> Conflict:
    listed = [str(hold) for hold in holds[:_SHOWN]] + ["..."] * (len(holds) > _SHOWN)
    ways = "; ".join(_WAY_OUT[kind] for kind in HoldKind if any(hold.kind == kind for hold in holds))
    hint = f"{ways[0].upper()}{ways[1:]}; or give --force, and the record will name what was overridden"
    return Conflict("the adapter is relied on", key=str(digest), found=", ".join(listed), hint=hint)


def _exports(store: Store, digest: Digest) -> tuple[Record, ...]:
    """The adapter's exports; where no record states one, what its own manifest does is recorded first."""
    known = seal.exports(store, digest)
    if known:
        return known
    lost = seal.read_seal(store, digest).missing
    for each in lost:
        store.put_record(each)
    return lost


def _dates(store: Store, digest: Digest) -> list[str]:
    """The times of all exports and removals of an adapter."""
    exported = [each.predicate["exported_at"] for each in gone.exports(store, digest)]
    return exported + [each.predicate["removed_at"] for each in gone.removals(store, digest)]


def size(store: Store, digest: Digest) -> int:
    """Bytes of its files. A damaged adapter may lack some."""
    total = 0
    for name in ADAPTER_FILES:
        with suppress(NotFound, IntegrityError), store.open(digest, name) as file:
            total += file.seek(0, os.SEEK_END)
    return total
