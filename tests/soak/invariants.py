"""What must hold of a registry after anything at all: one checker, used by every phase."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from registry import Digest, IntegrityError, NotFound, Registry
from registry.core.errors import RegistryError
from registry.core.records import EXPORT, REMOVAL
from registry.store import LocalStore

LOST, CORRUPT, LITTER, FAILED = "lost", "corrupt", "litter", "failed"
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Finding:
    """Something that must not be. `kind` is one of those above."""

    kind: str
    what: str


@dataclass
class Promises:
    """What commands that ended well have promised.

    Attributes:
        kept: adapters that were added and that nobody removes.
        removed: adapters that were removed and that nobody adds.
        aliases: what an alias names; None for none.
        moves: records of alias moves. scores: of score runs. removals: of removals; each with its adapter.
        exports: checkpoints' digests that were added, with their adapter.
        parents: adapters, each with the one that its training started from.
    """

    kept: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    aliases: dict[str, str | None] = field(default_factory=dict)
    moves: set[tuple[str, str]] = field(default_factory=set)
    scores: set[str] = field(default_factory=set)
    removals: set[tuple[str, str]] = field(default_factory=set)
    exports: set[tuple[str, str]] = field(default_factory=set)
    parents: set[tuple[str, str]] = field(default_factory=set)


def whole(directory: Path, digest: str) -> str | None:
    """What is wrong with an adapter's directory; None for nothing."""
    try:
        data = (directory / WEIGHTS).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        json.loads((directory / "adapter_config.json").read_bytes())
        json.loads((directory / "export-manifest.json").read_bytes())
    except (OSError, ValueError) as error:
        return f"{directory}: {error}"
    ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
    if hashlib.sha256(data).hexdigest() != digest.removeprefix("sha256:") or max(ends) != len(data) - 8 - length:
        return f"{directory}: not the bytes of {digest}"
    return None


def readable(home: Path, damaged: Iterable[str] = (), volatile: Iterable[str] = ()) -> tuple[int, list[Finding]]:
    """How many adapters a reader was handed just now, and what was wrong with them.

    Those that are `damaged` may be refused instead, and those that are `volatile` may go meanwhile.
    """
    found: list[Finding] = []
    reads = 0
    for digest in LocalStore(str(home)).digests():
        try:
            directory = Path(Registry(home).path(digest.hex))
            problem = whole(directory, digest.hex)
        except NotFound as error:
            problem = None if str(digest) in {*damaged, *volatile} else str(error)
        except IntegrityError as error:
            problem = None if str(digest) in damaged else str(error)
        except RegistryError as error:
            problem = str(error)
        if problem and str(digest) in volatile and not LocalStore(str(home)).contains(digest):
            problem = None
        reads += 1
        if problem:
            found.append(Finding(CORRUPT, problem))
    return reads, found


def check_output(out: Path, digests: Iterable[str]) -> list[Finding]:
    """A directory that `get` or `export` was to make: absent, reserved, or one of these adapters, whole."""
    beside = [each.name for each in out.parent.iterdir() if not each.name.startswith(f"{out.name}.partial")]
    found = [Finding(LITTER, f"{out.parent / name}") for name in beside if name != out.name]
    if out.exists() and os.listdir(out):
        problems = [whole(out, digest) for digest in digests]
        if all(problems):
            found.append(Finding(CORRUPT, str(problems)))
    return found


def check(home: Path, promises: Promises) -> list[Finding]:
    """Every invariant of a registry at rest, of which the last command was not killed. Rebuilds its index."""
    try:
        return _check(home, promises)
    except RegistryError as error:
        return [Finding(FAILED, f"checking: {type(error).__name__}: {error}")]


def _check(home: Path, promises: Promises) -> list[Finding]:
    notes: list[str] = []
    registry, store = Registry(home, note=notes.append), LocalStore(str(home))
    listed = [str(each.digest) for each in registry.newest(9999)]
    stored = [str(each) for each in store.digests()]
    found = [] if sorted(listed) == stored else [Finding(LOST, f"listed {listed}, stored {stored}")]
    found += [Finding(LOST, f"noted: {note}") for note in notes]
    found += readable(home)[1]
    found += [Finding(LOST, f"is gone: {digest}") for digest in promises.kept - set(stored)]
    found += [Finding(LOST, f"is back: {digest}") for digest in promises.removed & set(stored)]
    now = {move.name: str(move.after) for move in registry.aliases()}
    for name, digest in promises.aliases.items():
        if now.get(name) != digest:
            found.append(Finding(LOST, f"alias {name} names {now.get(name)}, promised {digest}"))
    found += _check_moves(registry, promises)
    scored = {str(run.record) for run in registry.score_runs(limit=9999)}
    found += [Finding(LOST, f"score {record}") for record in promises.scores - scored]
    for kind, promised in ((REMOVAL, promises.removals), (EXPORT, promises.exports)):
        for digest, what in promised:
            kept = store.records(Digest.parse(digest), kind)
            told = {str(each.digest) for each in kept} | {
                str(each.predicate.get("checkpoint", {}).get("sha256")) for each in kept
            }
            if what not in told and what.removeprefix("sha256:") not in told:
                found.append(Finding(LOST, f"{kind} {what} of {digest}"))
    for child, parent in promises.parents:
        known = registry.lineage(child, down=False).edges if child in stored else ()
        if not any(edge.source == f"adapter:{parent.removeprefix('sha256:')}" for edge in known):
            found.append(Finding(LOST, f"{child} started from {parent}"))
    for subject in store.subjects():
        store.records(subject)  # raises where a record is not what its name says
    found += [Finding(LITTER, f"pending: {record.name}") for record in store.unsettled()]
    staging = home / "staging"
    found += [Finding(LITTER, f"staging: {name}") for name in (os.listdir(staging) if staging.exists() else ())]
    done = registry.reindex()
    found += [Finding(CORRUPT, f"reindex: {error}") for error in done.damaged]
    changed = [change for change in done.changes if change.added or change.removed or change.changed]
    return found + [Finding(LOST, f"the index differed: {change}") for change in changed]


def _check_moves(registry: Registry, promises: Promises) -> list[Finding]:
    """Every acknowledged move is in its alias's history, in which each begins where the last one ended."""
    found = []
    for name in {name for name, _ in promises.moves}:
        moves = registry.alias_history(name)
        if [move.sequence for move in moves] != [*range(1, len(moves) + 1)]:
            found.append(Finding(LOST, f"alias {name}: the moves have gaps"))
        for before, after in pairwise(moves):
            if before.after != after.before:
                found.append(Finding(LOST, f"alias {name}: move {after.sequence} overlooked one"))
        there = {str(move.record) for move in moves}
        found += [
            Finding(LOST, f"move {record} of {name}")
            for at, record in promises.moves - {(name, each) for each in there}
            if at == name
        ]
    return found
