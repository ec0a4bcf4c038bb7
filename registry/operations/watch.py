"""Watch: the checkpoints of a run, taken in as they come. What must not be forgotten is in the registry; held here are
only looks at files, to see which of them still change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from registry.checkpoints import is_checkpoint, lacks, run_checkpoints, signature, tensor_files
from registry.core.errors import NotFound, Refused, RegistryError, StorageError
from registry.core.model import RunCheckpoint
from registry.disk import translated
from registry.operations.arrivals import Arrival, Intake, State

LONGEST = 86_400.0
"""The most seconds between two looks."""
Glance = tuple[tuple[int, int, int], ...]
_THERE = (State.ADDED, State.KNOWN)


def watch(
    run: str,
    intake: Intake,
    *,
    every: float,
    until_idle: float | None,
    note: Callable[[str], None],
) -> Iterator[Arrival]:
    """Take in the checkpoints of a run as they come, each once its files look the same in two looks and lack nothing.

    What is incomplete or refused is told once, and tried again when its files change; what could not be read, at every
    look. One that was taken in is looked at again when its tensors' file, or what lies beside that, changes: a run that
    is resumed writes its steps anew. All that is remembered between two runs of this is the registry itself.

    Args:
        run: its directory, which need not be there yet.
        intake: how to take one in.
        every: seconds between two looks.
        until_idle: stop once nothing has changed for so many seconds, and nothing waits for its second look or for a
            storage that fails; None for never.
        note: told what a person should know meanwhile, each thing once.

    Raises:
        Refused: the run has checkpoints of several kinds.
    """
    watched = _Watched(intake, note)
    while True:
        yield from watched.look(run)
        if until_idle is not None and watched.idle() >= until_idle:
            return
        time.sleep(every)


def require_run(run: str) -> None:
    """Refuse to watch what is a checkpoint itself, and no run too, or what cannot be listed.

    Raises:
        Refused. StorageError: one may not look.
    """
    with suppress(NotFound), translated(run):
        os.stat(run)  # a name that can be none would be waited for in vain
    if os.path.isdir(run):
        with translated(run), os.scandir(run):
            pass
    alone = os.path.isfile(run) or (os.path.isdir(run) and is_checkpoint(run) and lacks(run) is None)
    if alone and not run_checkpoints(run):
        raise Refused("a checkpoint, not the directory of a run", path=run, hint="`aorlta-reg add` takes it")


@dataclass(slots=True)
class _Seen:
    """A checkpoint that is watched.

    Attributes:
        looks: how its files looked last.
        files: with its tensors, once they were looked for.
        glance: how those looked before it was taken in; None while there is something to do with it.
        refused: whether it was, looking so.
        told: what was last told of it.
    """

    looks: object = None
    files: list[str] = field(default_factory=list)
    glance: Glance | None = None
    refused: bool = False
    told: object = None


class _Watched:
    """What was seen of a run, look after look."""

    def __init__(self, intake: Intake, note: Callable[[str], None]) -> None:
        self._intake = intake
        self._note = note
        self._seen: dict[str, _Seen] = {}
        self._said: set[str] = set()
        self._changed = time.monotonic()
        self._pending = False
        self._failing = False

    def idle(self) -> float:
        """For how many seconds nothing has changed; -1 while something waits for the next look."""
        return -1.0 if self._pending else time.monotonic() - self._changed

    def look(self, run: str) -> Iterator[Arrival]:
        """Take in what is ready now."""
        self._pending = False
        for checkpoint in self._listed(run):
            seen = self._seen.setdefault(checkpoint.path, _Seen())
            if not self._is_ready(checkpoint.path, seen):
                continue
            seen.files = _tensor_files(checkpoint.path)
            before = _glance(seen.files)
            arrival = self._taken(checkpoint)
            if arrival is None:
                return  # the others would fare no better
            yield from self._news(arrival, seen, before)

    def _listed(self, run: str) -> list[RunCheckpoint]:
        try:
            with os.scandir(run):
                pass
        except FileNotFoundError:
            self._say(f"{run} is not there yet")
        except OSError as error:
            self._pending = True
            self._say(
                f"{run} cannot be listed: {os.strerror(error.errno or 0).lower()}. It is tried again at every look"
            )
        return run_checkpoints(run)

    def _is_ready(self, path: str, seen: _Seen) -> bool:
        """Whether there is something to do with it, and it looks as at the last look."""
        if seen.glance is not None:
            if seen.glance == _glance(seen.files):
                return False
            seen.glance = seen.looks = None
        looks = signature(path)
        if looks == seen.looks:
            return not seen.refused
        seen.looks, seen.refused = looks, False
        self._changed, self._pending = time.monotonic(), True
        return False

    def _taken(self, checkpoint: RunCheckpoint) -> Arrival | None:
        """What became of it; None where the registry failed, and the next look tries again."""
        try:
            arrival = self._intake.take(checkpoint)
        except StorageError as error:
            self._pending = True
            if not self._failing:  # its words are not always the same: what is staged has another name each time
                self._note(f"{error}. It is tried again at every look")
            self._failing = True
            return None
        if arrival.state is State.ADDED:
            self._failing = False
        return arrival

    def _news(self, arrival: Arrival, seen: _Seen, before: Glance) -> Iterator[Arrival]:
        unread = isinstance(arrival.error, StorageError)  # that may pass without a change of any file
        seen.refused = arrival.state is State.REFUSED and not unread
        seen.glance = before if arrival.state in (*_THERE, State.REMOVED) else None
        told = (arrival.state in _THERE or arrival.state, arrival.digest, arrival.reason, str(arrival.error))
        if told != seen.told or (arrival.added is not None and arrival.added.new_export):
            seen.told, self._changed = told, time.monotonic()
            yield arrival

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._note(text)


def _tensor_files(path: str) -> list[str]:
    try:
        return tensor_files(path)
    except RegistryError:  # why, is told when it is taken in
        return [path]


def _glance(files: list[str]) -> Glance:
    """How files and the first one's directory look, for little: two calls, where thousands of checkpoints are known."""
    found = []
    for path in (*files, *(os.path.dirname(file) for file in files[:1])):
        try:
            status = os.stat(path)
        except OSError:  # gone, or out of reach: that differs from all that is there
            continue
        found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
