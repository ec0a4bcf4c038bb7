"""Mend: what a command does before it reads or writes the index, so that it answers for all that the store holds."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import IndexMissing, RegistryError
from registry.core.records import Record
from registry.store import Store, pass_over

if TYPE_CHECKING:
    from registry.index import Index

Note = Callable[[str], None]
FEW = 1000
"""So many records are read without asking, where the index knows none."""
_THERE = "Run `aorlta-reg reindex` where the registry is writable"
_ANY = "Any command where it is writable, such as `aorlta-reg list`, adds them"
_GIVEN_UP_AFTER = dt.timedelta(days=7)


def mend(store: Store, index: Index, now: str, note: Note) -> None:
    """Bring the index up to the store. The store is not walked, unless the index is empty or of an older schema.

    Args:
        store: the truth.
        index: what is derived from it.
        now: the time: an export whose adapter has not appeared for a week is given up.
        note: told, in a sentence, what a person should know.

    Raises:
        IndexMissing: the index is empty or of an older schema, and the store has too much to be read in passing.
        StorageError: the index cannot be read; IndexDamaged and IndexVersion among them.
    """
    if index.is_behind():
        if index.is_empty() and _holds_unannounced(store) and index.is_empty():  # or it has just been written
            _make_anew(store, index, note, "missing")
        elif index.is_stale():
            _make_anew(store, index, note, "made by an older version")
    for record in store.unsettled(lambda error: note(f"the index lacks a record: {error}")):
        try:
            _finish(store, index, record, now)
        except RegistryError as error:
            note(f"the index lacks a record: {error}")


def look(store: Store, index: Index, note: Note) -> None:
    """What stands in for `mend` where nothing can be written: say what the index may lack.

    Raises:
        IndexMissing: the index is empty, and the store is not.
        StorageError: the index cannot be read; IndexDamaged and IndexVersion among them.
    """
    waiting = store.unsettled(lambda error: note(f"the index lacks a record: {error}"))
    if index.is_empty():
        if waiting or next(chain(store.subjects(), store.digests()), None) is not None:
            raise IndexMissing("the index is missing, and cannot be made: the registry is read-only here", hint=_THERE)
    elif index.is_stale():
        note(f"the index was made by an older version and lacks some facts. {_THERE}")
    if waiting:
        note(f"the index may lack {len(waiting)} records: writers were killed, and it is read-only here. {_ANY}")


def _finish(store: Store, index: Index, record: Record, now: str) -> None:
    if record.kind == records.EXPORT and not store.contains(record.subject):
        if str(record.predicate.get("exported_at")) < _earlier(now):
            store.settle(record)
        return
    from registry.operations.settle import admit  # noqa: PLC0415  there is seldom anything to mend

    with index.moving() as moving:
        known = admit(store, record)
        moving.add(known)
    for each in (*known, record) if known else ():
        store.settle(each)


def _earlier(now: str) -> str:
    return (dt.datetime.fromisoformat(now) - _GIVEN_UP_AFTER).isoformat()


def _holds_unannounced(store: Store) -> bool:
    """Whether the store holds anything of which no writer, at work or killed, has left word."""
    announced: set[Digest] = set()
    for subject in chain(store.subjects(), store.digests()):
        if subject not in announced:
            announced = {record.subject for record in store.unsettled(pass_over)}
            if subject not in announced:
                return True
    return False


def _make_anew(store: Store, index: Index, note: Note, why: str) -> None:
    from registry.operations.reindex import reindex  # noqa: PLC0415

    count = 0
    for subject in store.subjects():
        count += len(store.records(subject, refused=pass_over))
        if count > FEW:
            raise IndexMissing(f"the index is {why}, and the store is not empty", hint="Run `aorlta-reg reindex`")
    done = reindex(store, index)
    note(f"the index was {why}: made anew from {sum(done.records.values())} records")
    for error in done.damaged:
        note(f"the index lacks a record: {error}")
