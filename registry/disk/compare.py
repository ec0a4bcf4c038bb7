"""Holding a file's bytes against bytes in memory, block by block."""

from __future__ import annotations

from collections.abc import Iterable

from registry.core.errors import IntegrityError


class Comparison:
    """Holds blocks of a file, in order, against the expected bytes; a difference is an IntegrityError."""

    def __init__(self, expected: Iterable[memoryview], name: str) -> None:
        self._expected = iter(expected)
        self._rest = memoryview(b"")
        self._name = name
        self._offset = 0

    def __call__(self, block: memoryview) -> None:
        while block:
            while not self._rest:
                self._rest = self._next()
            count = min(len(block), len(self._rest))
            if bytes(block[:count]) != bytes(self._rest[:count]):
                raise self._differs()
            block, self._rest = block[count:], self._rest[count:]
            self._offset += count

    def finish(self) -> None:
        """Call at the end of the file: everything expected must have come."""
        if self._rest or any(len(chunk) for chunk in self._expected):
            raise self._differs()

    def _next(self) -> memoryview:
        try:
            return next(self._expected)
        except StopIteration:
            raise self._differs() from None

    def _differs(self) -> IntegrityError:
        where = f"a difference after byte {self._offset}"
        return IntegrityError("the file does not hold the checkpoint's bits", key=self._name, found=where)
