"""sha256 in a thread of its own, so that reading and hashing share two cores. Both leave the interpreter free."""

from __future__ import annotations

import hashlib
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from registry.core.digest import Digest

CHUNK = 256 * 1024
"""Bytes per read. A larger buffer falls out of the L2 cache before it is hashed, which halves the speed."""

_SCRATCHES = 4


class BackgroundHash:
    """Hashes what `update` is given, in that order, while the caller goes on.

    A buffer belongs to the hash from `update` on: one that came from `scratch` is handed out again once it is hashed,
    any other must not change any more. The digest is known when the block has ended.
    """

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(_SCRATCHES):
            self._free.put(memoryview(bytearray(CHUNK)))
        self._given: SimpleQueue[tuple[memoryview, bool] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given.put(None)
        self._thread.join()

    def scratch(self) -> memoryview:
        """A buffer of CHUNK bytes; waits until one is free."""
        return self._free.get()

    def update(self, buffer: memoryview, *, is_scratch: bool) -> None:
        """Hash a buffer, or the start of one, next."""
        self._given.put((buffer, is_scratch))

    def digest(self) -> Digest:
        """The digest of all that was given."""
        return Digest(self._hasher.hexdigest())

    def _work(self) -> None:
        while (given := self._given.get()) is not None:
            buffer, is_scratch = given
            self._hasher.update(buffer)
            if is_scratch:
                self._free.put(memoryview(buffer.obj))
