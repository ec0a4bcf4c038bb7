"""Settle: from a record that was announced to one that store and index have.

Whoever writes a record announces it in the store before, and settles it once the index has it. So whatever was lost in
between, because its writer was killed, is announced still. The announcement holds the whole record: anyone can finish
the work, at any time and more than once, without knowing who began it or whether they live.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from registry.adapter import same_export
from registry.core import records
from registry.core.errors import MalformedFile, RegistryError
from registry.core.layout import CONFIG
from registry.core.records import Record
from registry.operations.gone import standing
from registry.operations.seal import read_seal
from registry.store import Refused, Store, pass_over

if TYPE_CHECKING:
    from registry.index import Index, Moving


def admit(store: Store, record: Record) -> list[Record]:
    """Put an announced record among the records of its adapter, and return it with the exports that it hangs on.

    An export is none as long as its adapter is not stored: then nothing is done, and nothing returned. A removal is
    finished: the adapter goes, unless it was exported again since. Nobody else may publish or remove meanwhile.

    Raises:
        IntegrityError: an export's record, or the adapter's manifest, is damaged.
        StorageError.
    """
    if record.kind != records.EXPORT:
        store.put_record(record)
        if record.kind == records.REMOVAL and standing(store, record.subject) is not None:
            store.remove(record.subject)
        return [*store.records(record.subject, records.EXPORT), record]
    if not store.contains(record.subject):
        return []
    seal = read_seal(store, record.subject)
    for each in seal.missing:
        store.put_record(each)
    if any(same_export(known.predicate, record.predicate) for known in seal.exports):
        return list(seal.exports)
    if record.predicate["adapter"][CONFIG]["sha256"] != seal.files[CONFIG].hex:
        return list(seal.exports)  # its writer came second, with another config, and was killed: it exported nothing
    store.put_record(record)
    return [*seal.exports, record]


def settle(store: Store, index: Index, new: Iterable[Record]) -> None:
    """Have the index derive its rows from records that the store has; then nothing is left to be done for them."""
    new = list(new)
    index.add(new)
    for record in new:
        store.settle(record)


def fill(store: Store, index: Index, new: Iterable[Record], refused: Refused) -> int:
    """Settle records one by one; returns how many. `refused` is told of each that does not say what its kind must.

    Raises:
        MalformedFile: that is so of an export, on which all else hangs.
        StorageError.
    """
    done = 0
    for record in new:
        try:
            settle(store, index, [record])
        except MalformedFile as error:
            if record.kind == records.EXPORT:
                raise
            refused(error)
        else:
            done += 1
    return done


def catch_up(store: Store, moving: Moving) -> list[Record]:
    """Admit what was announced by those who were killed since anyone looked: it counts for what follows.

    Returns what is to be settled once the index's transaction has ended. What cannot be admitted is left to `mend`,
    which says so.
    """
    done = []
    for record in store.unsettled(pass_over):
        with suppress(RegistryError):
            known = admit(store, record)
            moving.add(known)
            done += [*known, record] if known else []
    return done
