"""Verify: every byte, header, config and record of adapters, and the index, held against what they must be. Tells all
that is wrong, and changes nothing."""

from __future__ import annotations

import datetime as dt
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from registry.adapter.stored import read_adapter
from registry.core import records, times
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, RegistryError, StorageError, shown
from registry.core.layout import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS
from registry.core.records import Record
from registry.disk import hash_file
from registry.operations import against_index, seal
from registry.operations.gone import standing
from registry.store import Store, pass_over

if TYPE_CHECKING:
    from registry.index import Index

Progress = Callable[[int, int], None]
_LOST = "Add its checkpoint again, or restore the files from a copy of the registry"
_REMOVE = "Look who put it there, and remove it"
_RESTORE = "Restore the record from a copy of the registry; what it alone said is lost"


_UNTRUE = "The adapter's files are sound: look who wrote this record, and restore it from a copy of the registry"
_UNFINISHED = "Any command that can write here finishes it, or says why it cannot"
_LONG = dt.timedelta(weeks=1)
_SHOWN = 20


class Check(StrEnum):
    """What was held against what."""

    SEAL = "seal"  # digest, manifest and records against one another
    BYTES = "bytes"  # a file against the sha256 that is stated of it
    CONTENTS = "contents"  # header and tensors against the config
    FILES = "files"  # the files that are there against those that should be
    RECORD = "record"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `digest` is the adapter that it is about, None where it is about none."""

    digest: Digest | None
    check: Check
    error: RegistryError


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `verify`.

    Attributes:
        checked: how many stored adapters.
        bytes: how long their files are together.
        findings: all that is wrong, by adapter.
        notes: what is not wrong and yet worth a look, a sentence each.
        quarantined: how many corrupt copies are kept as evidence.
        seed: of the random choice, where only a share was looked at.
        seconds: how long it took.
    """

    checked: int
    bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    quarantined: int
    seed: int | None
    seconds: float


def verify(
    store: Store,
    index: Index | RegistryError | None,
    only: Iterable[Digest] | None,
    *,
    now: str,
    share: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Check adapters, their records, and what the index says of them.

    Args:
        store: what is read.
        index: what is held against the records; why it cannot be read; or None where there is no registry.
        only: these adapters, which are stored; None for all, and all that is recorded or indexed.
        now: the time: what was announced a week ago is noted.
        share: of all, only a random share is looked at, 0 < share <= 1, and at least one.
        seed: of that choice.
        progress: called, by one thread at a time, with the bytes read since the last call, and their total.

    Raises:
        StorageError: the store cannot even be listed.
    """
    started = time.perf_counter()
    stored = sorted(set(store.digests() if only is None else only))
    whole = only is None and share is None
    if share is not None:
        seed = secrets.randbelow(1 << 32) if seed is None else seed
        stored = _sampled(stored, share, seed)
    subjects = sorted({*stored, *store.subjects()}) if whole else stored
    findings, notes = _beside(store, now) if whole else ([], ())
    findings += chain.from_iterable(_check_records(store, subject) for subject in subjects)
    sizes = {digest: _size(store, digest) for digest in stored}
    findings += _check_files(store, sizes, progress)
    if isinstance(index, RegistryError):
        findings.append(Finding(None, Check.INDEX, index))
    elif index is not None:
        findings += _check_index(store, index, None if whole else stored)
    findings.sort(key=lambda each: (each.digest is not None, each.digest or Digest("0" * 64)))
    total, seconds = sum(sizes.values()), time.perf_counter() - started
    return Verified(len(stored), total, tuple(findings), notes, store.quarantined(), seed if share else None, seconds)


def _sampled(stored: Sequence[Digest], share: float, seed: int) -> list[Digest]:
    count = min(len(stored), max(1, round(len(stored) * share)))
    return sorted(random.Random(seed).sample(stored, count))  # noqa: S311  repeatable, and no secret


def _beside(store: Store, now: str) -> tuple[list[Finding], tuple[str, ...]]:
    """What lies beside the adapters and their records: announced records that cannot be read, over which whoever looks
    at them can only pass; and, as notes, those that nobody finished, and what does not belong there."""
    refused: list[RegistryError] = []
    old = [each for each in store.unsettled(refused.append) if times.is_before(records.time_of(each), now, _LONG)]
    notes = [f"announced more than a week ago, and not finished: {each.name}. {_UNFINISHED}" for each in old]
    try:
        strays = list(store.strays())
    except RegistryError as error:
        refused += [error] if all(str(error) != str(each) for each in refused) else []
        strays = []
    notes += [f"is nothing of the registry: {path}. {_REMOVE}" for path in strays[:_SHOWN]]
    notes += [f"and {len(strays) - _SHOWN} more that are nothing of the registry"] if len(strays) > _SHOWN else []
    return [Finding(None, Check.RECORD, error) for error in refused], tuple(notes)


def _check_records(store: Store, subject: Digest) -> list[Finding]:
    damaged: list[RegistryError] = []
    try:
        known = store.records(subject, refused=damaged.append)
    except StorageError as failed:
        return [Finding(subject, Check.RECORD, failed)]
    found = [Finding(subject, Check.RECORD, _advised(error, _RESTORE)) for error in damaged]
    exports = [each for each in known if each.kind == records.EXPORT]
    removal = standing(store, subject)
    stored = store.contains(subject)
    if removal is not None and _came_back(store, removal):
        hint = "Run `aorlta-reg add` on its checkpoint to have it again, or `aorlta-reg rm` to be rid of it"
        error = IntegrityError("is stored although it was removed", key=str(subject), hint=hint)
        found.append(Finding(subject, Check.RECORD, error))
    if exports and not stored and removal is None and not store.contains(subject) and not standing(store, subject):
        error = IntegrityError("is recorded, but its files are gone", key=str(subject), hint=_LOST)
        found.append(Finding(subject, Check.FILES, error))
    return found


def _came_back(store: Store, removal: Record) -> bool:
    """Whether an adapter is stored after its removal is over, and nobody has exported it since.

    A removal is announced until the files are gone, and an export from before they are there.
    """
    subject = removal.subject
    if removal.digest in {each.digest for each in seal.announced(store, subject, records.REMOVAL)}:
        return False
    if not store.contains(subject):
        return False
    last = standing(store, subject)
    return last is not None and last.digest == removal.digest


def _check_index(store: Store, index: Index, only: Sequence[Digest] | None) -> list[Finding]:
    try:
        differing = list(against_index.differing(store, index, only))
    except StorageError as error:
        return [Finding(None, Check.INDEX, error)]
    return [Finding(digest, Check.INDEX, error) for digest, error in differing]


def _size(store: Store, digest: Digest) -> int:
    total = 0
    for name in ADAPTER_FILES:
        with suppress(RegistryError), store.open(digest, name) as file:  # what cannot be opened is told when it is read
            total += file.seek(0, os.SEEK_END)
    return total


def _check_files(store: Store, sizes: dict[Digest, int], progress: Progress | None) -> list[Finding]:
    """Check the adapters on all cores, the longest first so that none is left alone with it at the end."""
    order = sorted(sizes, key=lambda digest: (-sizes[digest], digest))
    total, stop, lock = sum(sizes.values()), Event(), Lock()

    def read(block: memoryview) -> None:
        if stop.is_set():
            raise InterruptedError
        if progress is not None:
            with lock:
                progress(len(block), total)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting = [pool.submit(_check_adapter, store, digest, read) for digest in order]
        try:
            return [finding for each in waiting for finding in each.result()]
        except BaseException:  # an interrupt most likely: what is being hashed need not be finished
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _check_adapter(store: Store, digest: Digest, read: Callable[[memoryview], None]) -> list[Finding]:
    """All that is wrong with the files of one adapter; nothing if it was removed meanwhile."""
    found, sealed = _check_seal(store, digest)
    stated = {WEIGHTS: digest} if sealed is None else sealed.files
    for name in ADAPTER_FILES:
        try:
            nbytes = _check_file(store, digest, name, stated.get(name), read)
        except RegistryError as error:
            if name in stated:  # otherwise what states it has just been named
                found.append(Finding(digest, Check.BYTES, error))
            continue
        if sealed is not None and name != MANIFEST:
            found += _check_stated(sealed, digest, name, nbytes)
    try:
        with seal.opened(store, digest, WEIGHTS) as weights:
            read_adapter(weights, seal.read(store, digest, CONFIG))
    except RegistryError as error:
        if not _is_told(error, found):
            found.append(Finding(digest, Check.CONTENTS, error))
    try:
        for name in sorted(set(store.names(digest)) - {*ADAPTER_FILES}):
            unknown = IntegrityError("is no file of an adapter", path=name, key=str(digest), hint=_REMOVE)
            found.append(Finding(digest, Check.FILES, unknown))
    except RegistryError as error:
        found.append(Finding(digest, Check.FILES, error))
    advised = [Finding(each.digest, each.check, _advised(each.error, seal.REPAIR)) for each in found]
    return advised if store.contains(digest) else []


def _check_stated(sealed: seal.Seal, digest: Digest, name: str, nbytes: int) -> Iterator[Finding]:
    """The exports that say of a file, whose bytes are the right ones, what is not so."""
    actual = {"sha256": sealed.files[name].hex, "bytes": nbytes}
    for each in sealed.exports:
        stated = _stated(each.predicate, name)
        if name != WEIGHTS and stated.get("sha256") != actual["sha256"]:
            continue  # of an export whose config had another text
        for key, value in actual.items():
            if stated.get(key) != value:
                yield Finding(digest, Check.RECORD, _untrue(each, f"{name}: {key}", stated.get(key), value))


def _stated(predicate: dict[str, Any], name: str) -> dict[str, Any]:
    match predicate.get("adapter"):
        case {**files} if isinstance(stated := files.get(name), dict):
            return stated
    return {}


def _untrue(record: Record, key: str, stated: object, actual: object) -> IntegrityError:
    problem, found = "the record states what is not so", shown(stated)
    path = record.path or record.name
    return IntegrityError(problem, path=path, key=key, found=found, expected=shown(actual), hint=_UNTRUE)


def _check_seal(store: Store, digest: Digest) -> tuple[list[Finding], seal.Seal | None]:
    """What is wrong with the small files, and what they state, as far as that can be told."""
    try:
        sealed = seal.read_seal(store, digest)
    except RegistryError as error:
        return [Finding(digest, Check.SEAL, error)], None
    problem = "the export that its manifest states is not recorded"
    announced = {each.digest for each in seal.announced(store, digest)}
    recorded = {each.digest for each in store.records(digest, records.EXPORT, pass_over)}  # settled meanwhile
    lost = [each for each in sealed.missing if each.digest not in announced | recorded]
    unrecorded = IntegrityError(problem, path=MANIFEST, key=str(digest))
    return [Finding(digest, Check.RECORD, unrecorded) for _ in lost], sealed


def _check_file(
    store: Store, digest: Digest, name: str, stated: Digest | None, read: Callable[[memoryview], None]
) -> int:
    """Hold a file against its sha256; returns its length in bytes."""
    with seal.opened(store, digest, name) as file:
        actual = hash_file(file, read)
        if stated is not None and actual != stated:
            raise IntegrityError(
                "stored bytes do not match their digest", path=file.name, key=str(digest), found=actual, expected=stated
            )
        return file.tell()


def _is_told(error: RegistryError, found: Sequence[Finding]) -> bool:
    """Whether the same was found of the same file before: that it is missing, or cannot be read."""
    return any((each.error.path, each.error.problem) == (error.path, error.problem) for each in found)


def _advised(error: RegistryError, hint: str) -> RegistryError:
    """The same error with this advice, where it has no better."""
    if error.hint is not None:
        return error
    return type(error)(
        error.problem, path=error.path, key=error.key, expected=error.expected, found=error.found, hint=hint
    )
