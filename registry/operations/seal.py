"""What the bytes of a stored adapter must be: the chain from its digest to every file.

The weights prove themselves: the adapter is filed under their sha256. export-manifest.json names the sha256 of the
weights and of the config, and must be, byte for byte, the predicate of an export record, whose name is its own sha256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from registry.core import jsontext, records
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, InvalidReference, MalformedFile, NotFound
from registry.core.layout import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS
from registry.core.records import Record
from registry.disk import Comparison, blocks, hash_file
from registry.store import Store, pass_over

REPAIR = "Run `aorlta-reg verify --repair` of it, or `aorlta-reg add` of its checkpoint: that replaces the stored copy"


@dataclass(frozen=True, slots=True)
class Seal:
    """What is stated about a stored adapter.

    Attributes:
        files: the sha256 that each of its files must have.
        exports: its export records, with the one that its own manifest states.
        missing: those of them that the store does not hold, since their writer was killed.
    """

    files: dict[str, Digest]
    exports: tuple[Record, ...]
    missing: tuple[Record, ...]


def read_seal(store: Store, digest: Digest) -> Seal:
    """Read and check the small files of a stored adapter; the weights' bytes are left to the caller.

    An adapter without any record (its writer was killed between the two) is held to its manifest alone; one that has
    others, to the record that its writer announced.

    Raises:
        NotFound: no such adapter.
        IntegrityError: manifest, records and digest do not agree.
    """
    known = exports(store, digest)
    data = read(store, digest, MANIFEST)
    missing: tuple[Record, ...] = ()
    if known and not _stated(known, data):
        missing = _stated(announced(store, digest), data)
        known = exports(store, digest)  # again: its writer may have come to it meanwhile
        if not missing and not _stated(known, data):
            raise IntegrityError(
                "the stored manifest is in none of its records", path=MANIFEST, key=str(digest), hint=REPAIR
            )
    try:
        manifest = jsontext.parse(data, MANIFEST)
        stated = {name: Digest(manifest["adapter"][name]["sha256"]) for name in (WEIGHTS, CONFIG)}
    except (MalformedFile, InvalidReference, KeyError, TypeError) as error:
        raise IntegrityError("the stored manifest is damaged", path=MANIFEST, key=str(digest), hint=REPAIR) from error
    if stated[WEIGHTS] != digest:
        raise IntegrityError(
            "the stored manifest is of another adapter",
            path=MANIFEST,
            found=stated[WEIGHTS],
            expected=digest,
            hint=REPAIR,
        )
    files = {WEIGHTS: digest, CONFIG: stated[CONFIG], MANIFEST: Digest(hashlib.sha256(data).hexdigest())}
    if not known:
        missing = (records.make(records.EXPORT, digest, manifest),)
    return Seal(files, (*known, *missing), missing)


def exports(store: Store, digest: Digest) -> tuple[Record, ...]:
    """The export records of an adapter.

    Raises:
        IntegrityError: a record does not match its name.
    """
    return tuple(store.records(digest, records.EXPORT))


def announced(store: Store, digest: Digest, kind: str = records.EXPORT) -> tuple[Record, ...]:
    """The records of an adapter that were announced and are not settled."""
    return tuple(record for record in store.unsettled(pass_over) if record.subject == digest and record.kind == kind)


def _stated(known: Iterable[Record], manifest: bytes) -> tuple[Record, ...]:
    return tuple(record for record in known if jsontext.pretty(record.predicate) == manifest)


def verify(store: Store, digest: Digest, expected: Iterable[memoryview] | None = None) -> Seal:
    """Hold every file of a stored adapter against its seal.

    Args:
        store: where it lies.
        digest: which one.
        expected: the weights as they are in memory. Bits equal to bits that were just hashed need no second hash.

    Raises:
        NotFound: no such adapter.
        IntegrityError: a file is missing or does not match.
    """
    seal = read_seal(store, digest)
    for name in ADAPTER_FILES:
        with opened(store, digest, name) as file:
            if name == WEIGHTS and expected is not None:
                _compare(file, Comparison(expected, f"{digest}: {name}"))
            elif (actual := hash_file(file)) != seal.files[name]:
                raise mismatch(digest, name, actual, seal.files[name])
    return seal


def mismatch(digest: Digest, name: str, found: Digest, expected: Digest) -> IntegrityError:
    """What is said of a stored file whose bytes are others."""
    return IntegrityError(
        "stored bytes do not match their digest",
        path=name,
        key=str(digest),
        found=found,
        expected=expected,
        hint=REPAIR,
    )


def opened(store: Store, digest: Digest, name: str) -> BinaryIO:
    """Open a file that a stored adapter must have.

    Raises:
        NotFound: no such adapter.
        IntegrityError: the adapter is there and the file is not, or is no file or a link.
    """
    try:
        return store.open(digest, name)
    except NotFound as error:
        if not store.contains(digest):
            raise
        raise IntegrityError("a stored file is missing", path=name, key=str(digest), hint=REPAIR) from error


def read(store: Store, digest: Digest, name: str) -> bytes:
    """The bytes of a small file that a stored adapter must have. Raises as `opened`."""
    with opened(store, digest, name) as file:
        return b"".join(map(bytes, blocks(file)))


def _compare(file: BinaryIO, comparison: Comparison) -> None:
    for block in blocks(file):
        comparison(block)
    comparison.finish()
