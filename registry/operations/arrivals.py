"""Arrivals: the checkpoints of a run, taken in by step. What the registry knows already is told by its records and by
what the checkpoint's manifest lists, and is not read again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from registry.checkpoints import identify, lacks, listed_digest, run_checkpoints
from registry.core import jsontext, records
from registry.core.digest import Digest
from registry.core.errors import NotFound, RegistryError, StorageError
from registry.core.model import ReadOptions, RunCheckpoint, number
from registry.disk import holds_safetensors
from registry.operations import gone
from registry.store import Store, pass_over

if TYPE_CHECKING:
    from registry.index import Index
    from registry.operations.add import Added

_MOST = 50  # adapters of one checkpoint, each exported with another alpha


class State(StrEnum):
    """What became of a checkpoint of a run.

    added: its adapter was added, or found there; `Arrival.added` tells which.
    known: this checkpoint was exported before, with the same options, and its adapter is there.
    removed: it was exported before, and its adapter was removed. In a run it does not come back.
    incomplete: it is still being written, or was never finished.
    refused: it cannot be added; `Arrival.error` tells why.
    """

    ADDED = "added"
    KNOWN = "known"
    REMOVED = "removed"
    INCOMPLETE = "incomplete"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One checkpoint of a run.

    Attributes:
        checkpoint: its directory.
        step: as its name states it.
        state: what became of it.
        digest: its adapter; None where there is none.
        added: the result, where it was added.
        reason: what it lacks, where it is incomplete.
        error: why it was refused.
    """

    checkpoint: str
    step: int
    state: State
    digest: Digest | None = None
    added: Added | None = None
    reason: str | None = None
    error: RegistryError | None = None


@dataclass(frozen=True, slots=True)
class Intake:
    """How the checkpoints of one run are taken in.

    Attributes:
        store: where their adapters lie.
        index: None where it is missing: then every checkpoint is read.
        home: the registry's directory. What fails there would fail for every checkpoint, and is raised.
        add: adds one.
        options: what the user says of all of them.
        parent: the adapter that the run started from, where the user says so.
    """

    store: Store
    index: Callable[[], Index | None]
    home: str
    add: Callable[[str], Added]
    options: ReadOptions
    parent: Digest | None

    def take(self, checkpoint: RunCheckpoint) -> Arrival:
        """Add one checkpoint, or say why not.

        Raises:
            StorageError: of the registry itself.
        """
        path, step = checkpoint
        try:
            missing = lacks(path)
            if missing is not None:
                return Arrival(path, step, State.INCOMPLETE, reason=missing)
            known = self._known(path)
            if known is not None:
                return Arrival(path, step, State.KNOWN if self.store.contains(known) else State.REMOVED, known)
            added = self.add(path)
        except RegistryError as error:
            if isinstance(error, StorageError) and self._is_mine(error):
                raise
            if not os.path.lexists(path):  # trainers delete old ones
                return Arrival(path, step, State.INCOMPLETE, reason="it is gone")
            return Arrival(path, step, State.REFUSED, error=error)
        return Arrival(path, step, State.ADDED, added.digest, added)

    def _known(self, path: str) -> Digest | None:
        """The adapter of a checkpoint that was exported before, with the same options, from this place."""
        index = self.index()
        if index is None:
            return None
        file, digest, size = listed_digest(path)
        if digest is None:
            _, digest = identify(path)
        of_it = index.exported_from(digest, _MOST)
        there = [each for each in of_it if self.store.contains(each)]
        for adapter in there or [each for each in of_it if gone.standing(self.store, each) is not None]:
            if any(self._is_same(record.predicate, file, digest, size) for record in gone.exports(self.store, adapter)):
                return adapter if not self._wants_comparison(adapter) else None
        return None

    def _is_same(self, stated: dict[str, Any], file: str, digest: Digest, size: int) -> bool:
        try:
            checkpoint, run, base = stated["checkpoint"], stated["run"], stated["base"]
            same = (checkpoint["sha256"], checkpoint["bytes"], checkpoint["path"])
            asked = (
                (self.options.get("run"), run["id"]),
                (self._base_name(), base["name"]),
                (_number(self.options.get("alpha")), stated["lora"]["lora_alpha"]),
                (None if self.parent is None else self.parent.hex, run["warm_start"]),
            )
        except (KeyError, TypeError):  # a record of an earlier version, or a damaged one: read the checkpoint
            return False
        return same == (digest.hex, size, jsontext.sayable(file)) and all(
            wanted is None or wanted == found for wanted, found in asked
        )

    def _base_name(self) -> str | None:
        base = self.options.get("base")
        return None if base is None or holds_safetensors(base) else base

    def _wants_comparison(self, adapter: Digest) -> bool:
        """Whether weights of the base were given, and it was never compared with what was served."""
        base = self.options.get("base")
        if base is None or not holds_safetensors(base) or not self.store.contains(adapter):
            return False
        return not any(True for _ in self.store.records(adapter, records.COMPARISON, pass_over))

    def _is_mine(self, error: StorageError) -> bool:
        path = os.path.abspath(error.path or self.home)
        return path == self.home or path.startswith(os.path.join(self.home, ""))


def take_all(run: str, intake: Intake) -> Iterator[Arrival]:
    """Take in the checkpoints that a run has now, by step.

    Raises:
        NotFound: it has none. Refused: they are of several kinds.
        StorageError: of the registry itself.
    """
    listed = run_checkpoints(run)
    if not listed:
        raise NotFound("no checkpoints of a run", path=run)
    for checkpoint in listed:
        yield intake.take(checkpoint)


def _number(value: float | None) -> int | float | None:
    return None if value is None else number(value)
