"""Reindex: the index anew from nothing but the store."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, RegistryError, StorageError
from registry.core.records import Record
from registry.core.summary import IndexChange
from registry.operations.gone import standing
from registry.operations.seal import read_seal
from registry.operations.settle import admit
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index

_OF_KNOWN_ADAPTERS = (records.COMPARISON, records.SCORE, records.REMOVAL)
"""Kinds whose rows hang on an adapter's; an alias outlives its adapter."""
_PLACES = 1 << 16  # digests are spread evenly: how far one is among all says how much is done


@dataclass(frozen=True, slots=True)
class Reindexed:
    """The result of `reindex`.

    Attributes:
        records: how many were read, by kind.
        changes: how the index differed, for each kind of row.
        damaged: why something was left out; each names the file.
        set_aside: where an index is now that was damaged; None where it was sound or missing.
        seconds: how long it took.
    """

    records: Mapping[str, int]
    changes: tuple[IndexChange, ...]
    damaged: tuple[RegistryError, ...]
    set_aside: str | None
    seconds: float

    @property
    def rate(self) -> float:
        """Records per second."""
        return sum(self.records.values()) / self.seconds


def reindex(store: Store, index: Index, progress: Callable[[int, int], None] | None = None) -> Reindexed:
    """Derive the whole index from the store's records, in one transaction: until it is done, readers see the old one.

    A damaged record is left out, and so is what cannot be told without it. One that cannot be read now, as on a failing
    disk or without permission, may well be sound: that stops it, and the index stays as it was. An index that is not a
    sound database is set aside first; what other processes still write into that one is not in the new one.

    Args:
        store: what is read. Records that were announced or lost, and can be told from the adapter, are written there.
        index: what is replaced.
        progress: called with how many places of a total were passed since the last call.

    Raises:
        StorageError: the index cannot be written, or the store not be read. IndexVersion: a newer program made it.
    """
    started = time.perf_counter()
    damaged = _Damaged()
    counts: Counter[str] = Counter()
    set_aside = index.set_aside_if_damaged()
    settled: list[Record] = []

    def found() -> Iterator[Record]:
        settled.extend(each for each in store.unsettled(damaged.note) if _is_admitted(store, each, damaged))
        place = 0
        for subject in _subjects(store):
            for record in _known_of(store, subject, damaged):
                counts[record.kind] += 1
                yield record
            if progress is not None:
                reached = int(subject.hex[:4], 16)
                progress(reached - place, _PLACES)
                place = reached

    changes = index.rebuild(found(), lambda _record, error: damaged.note(error))
    for record in settled:
        store.settle(record)
    return Reindexed(dict(counts), changes, tuple(damaged.found), set_aside, time.perf_counter() - started)


class _Damaged:
    """What is left out, and why."""

    def __init__(self) -> None:
        self.found: list[RegistryError] = []

    def note(self, error: RegistryError) -> None:
        """Leave it out; but stop at what cannot be read now."""
        if isinstance(error, StorageError):
            raise error
        self.found.append(error)


def _is_admitted(store: Store, record: Record, damaged: _Damaged) -> bool:
    try:
        return bool(admit(store, record))
    except RegistryError as error:
        damaged.note(error)
        return False


def _subjects(store: Store) -> Iterator[Digest]:
    """Every adapter that is stored or recorded, sorted."""
    return (subject for subject, _ in groupby(heapq.merge(store.subjects(), store.digests())))


def _known_of(store: Store, subject: Digest, damaged: _Damaged) -> Iterator[Record]:
    """The records about an adapter, its exports first."""
    before = len(damaged.found)
    found = store.records(subject, refused=damaged.note)
    exports = [record for record in found if record.kind == records.EXPORT]
    if not exports and len(damaged.found) == before and store.contains(subject):
        exports = _lost_exports(store, subject, damaged)
    yield from exports
    for record in found:
        if record.kind in _OF_KNOWN_ADAPTERS and not exports:
            damaged.note(IntegrityError("is about an adapter of which no export is recorded", path=record.path))
        elif record.kind != records.EXPORT:
            yield record
    if any(record.kind == records.REMOVAL for record in found) and store.contains(subject) and standing(store, subject):
        hint = "Run `aorlta-reg add` on its checkpoint to have it again, or `aorlta-reg rm` to be rid of it"
        damaged.note(IntegrityError("is stored although it was removed", key=str(subject), hint=hint))


def _lost_exports(store: Store, subject: Digest, damaged: _Damaged) -> list[Record]:
    """The export that an adapter's own manifest states, where no record does: it is recorded again."""
    try:
        lost = list(read_seal(store, subject).missing)
        for record in lost:
            store.put_record(record)
            store.settle(record)
    except RegistryError as error:
        damaged.note(error)
        return []
    return lost
