"""Add: one checkpoint into the store and the index. Doing it again changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from registry.adapter import same_export
from registry.core import records
from registry.core.comparison import Comparison
from registry.core.digest import Digest
from registry.core.errors import ConfigConflict, IntegrityError, NotFound, RegistryError, shown
from registry.core.layout import CONFIG
from registry.core.peft_config import differing
from registry.core.peft_function import same_function
from registry.core.peft_tensors import decode
from registry.core.records import Record
from registry.core.times import is_time, later
from registry.operations import export, gone, seal, settle
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index

Removals = list[tuple[str, Digest]]
"""When an adapter was removed, oldest first, with the records that say so."""


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


def add(store: Store, index: Index, new: export.Export, now: str) -> tuple[Added, tuple[Record, ...]]:
    """Publish a prepared adapter and record its export. Returns the result and all the adapter's export records.

    The stored copy of a known adapter is compared with the checkpoint's bits first; only a sound one counts as present.
    An adapter that was removed is exported anew: its record is later than the removal, whatever the clocks say.

    Args:
        store: where to.
        index: its write lock is held while the adapter is published and recorded. Nothing is written into it.
        new: what was read, as it will be stored.
        now: the time, for the record.

    Raises:
        ConfigConflict: it is stored with a config that makes another function of the same tensors.
        IntegrityError: what was written is not what was read, or a record is corrupt.
        StorageError: the store failed; the adapter is there whole or not at all.
    """
    while (done := _attempt(store, index, new, now)) is None:
        pass  # another process has just published or removed it
    return done


def _attempt(store: Store, index: Index, new: export.Export, now: str) -> tuple[Added, tuple[Record, ...]] | None:
    """The same, or None where what it was decided on has changed meanwhile."""
    earlier, removals = seal.exports(store, new.digest), _removals(store, new.digest)
    removal = gone.standing(store, new.digest)
    if removal is not None:
        with index.moving():
            settle.admit(store, removal)  # whoever removed it may have been killed before its files were gone
    stored, damage = _stored(store, new)
    outcome = Outcome.PRESENT
    if stored is None:
        outcome = Outcome.ADDED if damage is None else Outcome.REPAIRED
        record = _published(store, index, new, removals, now, replace=damage is not None)
    else:
        config = seal.read(store, new.digest, CONFIG)
        require_same_function(new, config)
        record = _record(_noting(new, config), config, stored.exports, now)
        if not _recorded(store, index, new.digest, (*stored.missing, record), removals):
            return None
    if record is None:
        return None
    fresh = record.digest not in {known.digest for known in earlier}
    return Added(new.digest, outcome, fresh, record.predicate, damage), seal.exports(store, new.digest)


def _stored(store: Store, new: export.Export) -> tuple[seal.Seal | None, str | None]:
    """The seal of the stored copy if it is sound, or what is wrong with it; neither if there is none."""
    if not store.contains(new.digest):
        return None, None
    try:
        return seal.verify(store, new.digest, new.weights.chunks()), None
    except IntegrityError as error:
        _require_same_function_if_sound(store, new)
        return None, str(error)
    except NotFound:  # it has just been removed
        return None, None


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


def _recorded(store: Store, index: Index, digest: Digest, stated: Iterable[Record], removals: Removals) -> bool:
    """Record exports of an adapter that is there; False if it is no longer."""
    with index.moving():
        if not store.contains(digest) or _removals(store, digest) != removals:
            return False
        for each in stated:  # the one that the stored manifest states comes first
            store.put_record(each)
    return True


def _published(
    store: Store, index: Index, new: export.Export, removals: Removals, now: str, *, replace: bool
) -> Record | None:
    """Publish and record; returns the record, or None if another process published or removed it meanwhile."""
    digest, known = new.digest, (*seal.exports(store, new.digest), *seal.announced(store, new.digest))
    since = removals[-1][0] if removals else ""
    lasting = [each for each in known if not since or _is_later(each.predicate.get("exported_at"), since)]
    record = _record(new, new.config, lasting, later(now, [since]))
    with store.stage() as stage:
        export.write(new, stage.files, record.predicate)
        with index.moving():
            if store.contains(digest) != replace or _removals(store, digest) != removals:
                return None
            store.announce(record)
            if replace:
                stage.replace(digest)
            elif not stage.publish(digest):
                store.settle(record)
                return None
            store.put_record(record)
    return record


def _is_later(at: object, since: str) -> bool:
    return is_time(at) and at > since


def _removals(store: Store, digest: Digest) -> Removals:
    return [(each.predicate["removed_at"], each.digest) for each in gone.removals(store, digest)]
