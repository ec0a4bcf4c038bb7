"""Repair: a stored adapter made anew from a checkpoint that it came from, where that still gives the very same bytes.

Nothing is guessed: the files must have the sha256 that a record of the adapter states. The bad copy is kept aside.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from registry.core import jsontext, records
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, RegistryError
from registry.core.layout import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS
from registry.core.model import Checkpoint, ReadOptions
from registry.core.records import Record
from registry.disk import hash_file, translated
from registry.operations import export, seal
from registry.operations.gone import standing
from registry.operations.settle import settle
from registry.operations.verify import Check, Finding
from registry.store import Store, pass_over

if TYPE_CHECKING:
    from registry.index import Index

_AGAIN = "Give `aorlta-reg add` a checkpoint of it, wherever one is kept"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What `repair` did: the adapters that were made anew, each with the checkpoint; and why others were not."""

    done: tuple[tuple[Digest, str], ...]
    failed: tuple[RegistryError, ...]


def repair(store: Store, index: Index, findings: Iterable[Finding]) -> Repaired:
    """Mend what was found, as far as records and checkpoints tell for certain what it was.

    A record that only an adapter's manifest states is recorded, records that the index lacks are given to it, and
    adapters whose files are damaged or gone are made anew.

    Raises:
        StorageError: the registry cannot be written.
    """
    done: list[tuple[Digest, str]] = []
    failed: list[RegistryError] = []
    checks: dict[Digest, set[Check]] = {}
    for each in findings:
        if each.digest is not None:
            checks.setdefault(each.digest, set()).add(each.check)
    for digest, found in sorted(checks.items()):
        try:
            if found & {Check.SEAL, Check.BYTES, Check.FILES} and _is_damaged(store, digest):
                done.append((digest, _made_anew(store, index, digest)))
            if found & {Check.RECORD, Check.INDEX}:
                _record_and_index(store, index, digest)
        except RegistryError as error:
            failed.append(error)
    return Repaired(tuple(done), tuple(failed))


def _record_and_index(store: Store, index: Index, digest: Digest) -> None:
    if not store.contains(digest):
        return
    with index.moving():
        sealed = seal.read_seal(store, digest)
        for record in sealed.missing:
            store.put_record(record)
    others = (each for each in store.records(digest, refused=pass_over) if each.kind != records.EXPORT)
    settle(store, index, [*sealed.exports, *others])


def _is_damaged(store: Store, digest: Digest) -> bool:
    """Whether the files are not, all together, those of some export. A damaged record alone is no reason."""
    if not store.contains(digest):
        return standing(store, digest) is None
    try:
        actual = {}
        for name in ADAPTER_FILES:
            with seal.opened(store, digest, name) as file:
                actual[name] = hash_file(file)
        return actual not in [_files(record) for record in _exports(store, digest)]
    except RegistryError:
        return True


def _exports(store: Store, digest: Digest) -> list[Record]:
    """All export records that can be read, announced ones too; the newest first."""
    known = {
        each.digest: each
        for each in (*seal.announced(store, digest), *store.records(digest, records.EXPORT, pass_over))
    }
    if not known:
        try:
            known = {each.digest: each for each in seal.read_seal(store, digest).missing}
        except RegistryError:
            known = {}
    return sorted(known.values(), key=lambda each: (str(each.predicate.get("exported_at")), each.digest), reverse=True)


def _files(record: Record) -> dict[str, Digest]:
    """The sha256 that an export states of each file."""
    manifest = hashlib.sha256(jsontext.pretty(record.predicate)).hexdigest()
    stated = record.predicate["adapter"][CONFIG]["sha256"]
    return {WEIGHTS: record.subject, CONFIG: Digest(stated), MANIFEST: Digest(manifest)}


def _made_anew(store: Store, index: Index, digest: Digest) -> str:
    """Replace an adapter from the first of its checkpoints that gives the same bytes; returns which that was.

    Raises:
        IntegrityError: none does; it says why for each.
    """
    reasons = []
    for record in _exports(store, digest):
        try:
            new = _exported_again(store, record)
            _replace(store, index, new, record)
        except (KeyError, TypeError):
            reasons.append(f"{record.name} does not say what it was exported from")
        except RegistryError as error:
            reasons.append(str(error).removesuffix("."))
        else:
            return new.checkpoint.path
    listed = "; ".join(reasons) or "no record says what it was exported from"
    raise IntegrityError("cannot be repaired", key=str(digest), found=listed, hint=_AGAIN)


def _exported_again(store: Store, record: Record) -> export.Export:
    """The adapter of an export as its checkpoint gives it now.

    Raises:
        IntegrityError: it gives another one, or is another checkpoint; both digests are named.
        NotFound, Refused, StorageError: it cannot be read.
    """
    from registry.checkpoints import read_checkpoint  # noqa: PLC0415  what only repairs need, other checks do not load

    stated = record.predicate
    path, origin = stated["checkpoint"]["path"], stated["base"]
    with translated(path):
        os.stat(path)  # a reader would say what else it looked for
    options: ReadOptions = {"allow_nonfinite": bool(stated["adapter"]["nonfinite"])}
    if stated["alpha_source"] == "option":
        options["alpha"] = stated["lora"]["lora_alpha"]
    read: Checkpoint = read_checkpoint(path, **options)
    _require("is another checkpoint by now", path, read.digest, stated["checkpoint"]["sha256"])
    provenance = replace(read.provenance, base=origin["name"], base_revision=origin["revision"])
    new = export.prepare(replace(read, provenance=provenance))
    _require("gives another adapter by now", path, new.digest, record.subject.hex)
    wanted = stated["adapter"][CONFIG]["sha256"]
    if hashlib.sha256(new.config).hexdigest() != wanted:
        new = replace(new, config=_stored_config(store, record, wanted))
    return new


def _stored_config(store: Store, record: Record, wanted: Any) -> bytes:
    """The config as it is stored, if that file is sound: the checkpoint gives another text of it."""
    config = seal.read(store, record.subject, CONFIG)
    _require("neither the checkpoint nor the stored copy gives its text", CONFIG, _sha256(config), wanted)
    return config


def _replace(store: Store, index: Index, new: export.Export, record: Record) -> None:
    """Put the adapter in the place of the damaged one, while nobody removes or repairs it."""
    with store.stage() as stage:
        export.write(new, stage.files, record.predicate)
        with index.moving():
            if not _is_damaged(store, record.subject):
                return
            store.announce(record)
            stage.replace(record.subject)
            store.put_record(record)
    settle(store, index, seal.exports(store, record.subject))


def _require(problem: str, path: str, found: Digest, expected: str) -> None:
    if found.hex != expected:
        raise IntegrityError(problem, path=path, found=found, expected=f"sha256:{expected}")


def _sha256(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())
