"""Add: one checkpoint into the store and the index. Doing it again changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from registry.adapter import same_export
from registry.core import records
from registry.core.comparison import Comparison
from registry.core.digest import Digest
from registry.core.errors import ConfigConflict, IntegrityError, RegistryError, shown
from registry.core.model import CONFIG, Checkpoint
from registry.core.peft_config import differing
from registry.core.peft_function import same_function
from registry.core.peft_tensors import decode
from registry.core.records import Record
from registry.operations import export, seal
from registry.store import Store


class Outcome(StrEnum):
    """What `add` found and did."""

    ADDED = "added"
    PRESENT = "already present"
    REPAIRED = "repaired"


@dataclass(frozen=True, slots=True)
class Added:
    """The result of `add`.

    Attributes:
        digest: the adapter.
        outcome: whether it was new, present and sound, or present and corrupt (and has been replaced).
        new_export: whether the registry learned of this export just now.
        manifest: the export's manifest, as recorded.
        damage: what was wrong with the stored copy that was replaced.
        comparison: with what the engines were served, where that was asked for.
        comparison_error: why that could not be done, although the adapter was added.
    """

    digest: Digest
    outcome: Outcome
    new_export: bool
    manifest: dict[str, Any]
    damage: str | None = None
    comparison: Comparison | None = None
    comparison_error: RegistryError | None = None


def add(store: Store, checkpoint: Checkpoint, now: str) -> tuple[Added, tuple[Record, ...]]:
    """Publish a checkpoint's adapter and record the export. Returns the result and all the adapter's export records.

    The stored copy of a known adapter is compared with the checkpoint's bits first; only a sound one counts as present.

    Raises:
        ConfigConflict: it is stored with a config that makes another function of the same tensors.
        IntegrityError: what was written is not what was read, or a record is corrupt.
        StorageError: the store failed; the adapter is there whole or not at all.
    """
    new = export.prepare(checkpoint)
    earlier = seal.exports(store, new.digest)
    stored, damage = _stored(store, new)
    outcome = Outcome.PRESENT
    if stored is None:
        outcome = _publish(store, new, earlier, now, replace=damage is not None)
        stored = seal.read_seal(store, new.digest)
    config = seal.read(store, new.digest, CONFIG)
    require_same_function(new, config)
    record = _record(_noting(new, config), config, stored.exports, now)
    for each in dict.fromkeys((*stored.missing, record)):  # the one that the stored manifest states comes first
        store.put_record(each)
    fresh = record.digest not in {known.digest for known in earlier}
    exports = tuple(dict.fromkeys((*stored.exports, record)))
    return Added(new.digest, outcome, fresh, record.predicate, damage), exports


def _stored(store: Store, new: export.Export) -> tuple[seal.Seal | None, str | None]:
    """The seal of the stored copy if it is sound, or what is wrong with it; neither if there is none."""
    if not store.contains(new.digest):
        return None, None
    try:
        return seal.verify(store, new.digest, new.weights.chunks()), None
    except IntegrityError as error:
        _require_same_function_if_sound(store, new)
        return None, str(error)


def _require_same_function_if_sound(store: Store, new: export.Export) -> None:
    """A copy of which only the weights went bad still says which function it was."""
    try:
        expected, config = seal.read_seal(store, new.digest).files[CONFIG], seal.read(store, new.digest, CONFIG)
    except IntegrityError:
        return
    if hashlib.sha256(config).hexdigest() == expected.hex:
        require_same_function(new, config)


def require_same_function(new: export.Export, stored: bytes) -> None:
    """Refuse an adapter that is stored with the config `stored`, if its own makes another function of the tensors.

    Raises:
        ConfigConflict: both are shown.
    """
    if stored == new.config:
        return
    path, tensors = new.checkpoint.path, new.named_tensors()
    ours, theirs = (decode(tensors, config, path) for config in (new.config, stored))
    if not same_function(ours, theirs):
        found, expected = differing(ours.config, theirs.config)
        raise ConfigConflict(
            "the registry holds these weights with a config that means another function",
            path=path,
            key=str(new.digest),
            found=_shown(found),
            expected=_shown(expected),
            hint="Look at `aorlta-reg path` of it for the one that is stored",
        )


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {shown(value)}" for key, value in settings.items())


def _noting(new: export.Export, stored: bytes) -> export.Export:
    """Say it where the stored config, which stays, has other words for the same function."""
    if new.checkpoint.peft is None or stored == new.config:
        return new
    warnings = (*new.checkpoint.warnings, f"stored already, with another text of {CONFIG} that means the same")
    return replace(new, checkpoint=replace(new.checkpoint, warnings=warnings))


def _record(new: export.Export, config: bytes, known: Iterable[Record], now: str) -> Record:
    """The known record of this export, or a new one."""
    manifest = export.manifest_of(new, config, now)
    same = next((record for record in known if same_export(record.predicate, manifest)), None)
    return same or records.make(records.EXPORT, new.digest, manifest)


def _publish(store: Store, new: export.Export, earlier: tuple[Record, ...], now: str, *, replace: bool) -> Outcome:
    record = _record(new, new.config, (*earlier, *_announced(store, new.digest)), now)
    with store.stage() as stage:
        export.write(new, stage.files, record.predicate)
        if earlier:  # records that outlived their adapter: its manifest is in one of them from the moment it is seen
            store.put_record(record)
        else:
            store.announce(record)
        if replace:
            stage.replace(new.digest)
            return Outcome.REPAIRED
        if stage.publish(new.digest):
            return Outcome.ADDED
    first = seal.verify(store, new.digest, new.weights.chunks())  # another process was; its copy is held to the same
    if record.digest not in {known.digest for known in first.exports}:
        store.settle(record)  # no adapter has this manifest
    return Outcome.PRESENT


def _announced(store: Store, digest: Digest) -> list[Record]:
    """Exports of an adapter that was never published: their writers were killed."""
    return [
        record
        for record in store.unsettled(lambda _: None)
        if record.subject == digest and record.kind == records.EXPORT
    ]
