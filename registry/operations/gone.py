"""Gone: what records tell of an adapter that was removed. It is read from the store, so that no index is needed."""

from __future__ import annotations

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import NotFound
from registry.core.records import Record
from registry.core.times import is_time
from registry.operations.seal import announced
from registry.store import Store, pass_over

_LONG = 200  # characters of a reason that a message repeats


def removals(store: Store, digest: Digest) -> list[Record]:
    """All removals of an adapter, recorded or announced, oldest first. What states no time is none."""
    return _dated(store, digest, records.REMOVAL, "removed_at")


def exports(store: Store, digest: Digest) -> list[Record]:
    """All exports of an adapter, likewise."""
    return _dated(store, digest, records.EXPORT, "exported_at")


def standing(store: Store, digest: Digest) -> Record | None:
    """The removal that is the last word on an adapter; None where there was none, or it was exported again since."""
    removed = removals(store, digest)
    if not removed:
        return None
    exported = [record.predicate["exported_at"] for record in exports(store, digest)]
    return removed[-1] if removed[-1].predicate["removed_at"] > max(exported, default="") else None


def not_found(store: Store, digest: Digest) -> NotFound:
    """The error for an adapter that is not stored: with who removed it, when and why, if somebody did."""
    removal = standing(store, digest)
    if removal is None:
        return NotFound("no such adapter in the store", key=str(digest))
    at, who, reason = (removal.predicate.get(key) for key in ("removed_at", "removed_by", "reason"))
    why = f": {str(reason)[:_LONG]}" if reason else ""
    paths = [str(checkpoint.get("path")) for each in exports(store, digest) if (checkpoint := _checkpoint(each))]
    hint = f"Add its checkpoint again: {paths[-1]}" if paths else None
    return NotFound(f"the adapter was removed at {at} by {who}{why}", key=str(digest), hint=hint)


def _checkpoint(export: Record) -> dict[str, object]:
    checkpoint = export.predicate.get("checkpoint")
    return checkpoint if isinstance(checkpoint, dict) else {}


def _dated(store: Store, digest: Digest, kind: str, key: str) -> list[Record]:
    known = {each.digest: each for each in (*announced(store, digest, kind), *store.records(digest, kind, pass_over))}
    dated = [each for each in known.values() if is_time(each.predicate.get(key))]
    return sorted(dated, key=lambda each: (each.predicate[key], each.digest))
