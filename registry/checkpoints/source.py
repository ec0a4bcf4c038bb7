"""One open file: small reads to plan with, then one pass that hashes every byte and keeps those that are wanted.
Knows nothing of what the bytes mean."""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from os import PathLike
from types import TracebackType
from typing import NamedTuple, Self

from registry.checkpoints.background import CHUNK, BackgroundHash
from registry.core.digest import Digest
from registry.core.errors import ChangedWhileRead, MalformedFile, NotFound, StorageError


class Range(NamedTuple):
    """The bytes from `start` up to, not including, `stop`."""

    start: int
    stop: int


class Segment(NamedTuple):
    """Bytes that were kept, and where in the file they start."""

    start: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Streamed:
    """What one pass over a file gave.

    Attributes:
        digest: sha256 of the whole file.
        segments: the bytes that were kept: disjoint, in file order.
        crcs: the CRC-32 of each range that was to be checked.
    """

    digest: Digest
    segments: Sequence[Segment]
    crcs: Mapping[Range, int]

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes of a range that was wanted, borrowed and read-only."""
        if start == stop:
            return memoryview(b"")
        first, data = self.segments[bisect_right(self.segments, start, key=itemgetter(0)) - 1]
        return data[start - first : stop - first]


class Source:
    """A regular file, opened once and never again.

    Symbolic links are followed. What `peek` returns is remembered and held against what `stream` sees later, so a
    plan never outlives the bytes that it was made from.

    Raises:
        NotFound: no file has this path.
        MalformedFile: it is a directory, FIFO, device or socket.
        StorageError: it cannot be opened or read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file = _open_regular(self.path)
        self._opened = os.fstat(self._file)
        self.size = self._opened.st_size
        self._peeked: dict[Range, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. What was read stays valid."""
        os.close(self._file)

    def peek(self, offset: int, length: int) -> bytes:
        """Read a range to plan with.

        Raises:
            MalformedFile: the file ends before the range does.
        """
        wanted = Range(offset, offset + length)
        if wanted.stop > self.size:
            raise MalformedFile("truncated", path=self.path, expected=f"{wanted.stop} bytes", found=f"{self.size}")
        if wanted not in self._peeked:
            buffer = bytearray(length)
            self._fill(memoryview(buffer), offset)
            self._peeked[wanted] = bytes(buffer)
        return self._peeked[wanted]

    def stream(
        self,
        wanted: Iterable[tuple[int, int]],
        progress: Callable[[int], None] | None = None,
        *,
        checked: Iterable[tuple[int, int]] = (),
    ) -> Streamed:
        """Read the file once, from its first byte to its end.

        Args:
            wanted: the ranges to keep, in any order; they may overlap.
            progress: called with the number of bytes read since the last call.
            checked: disjoint ranges to take a CRC-32 of, kept or not.

        Raises:
            ChangedWhileRead: the file is not what it was when it was opened, or when it was peeked at.
        """
        segments = self._allocate(_merged([*wanted, *self._peeked], self.size))
        crcs = {Range(*limits): 0 for limits in checked}
        with BackgroundHash() as sha256:
            for start, stop, segment, check in _pieces(self.size, segments, crcs):
                buffer = sha256.scratch() if segment is None else segment.data[start - segment.start :]
                buffer = buffer[: stop - start]
                self._fill(buffer, start)
                if check is not None:
                    crcs[check] = zlib.crc32(buffer, crcs[check])
                sha256.update(buffer, is_scratch=segment is None)
                if progress is not None:
                    progress(len(buffer))
        kept = [Segment(start, data.toreadonly()) for start, data in segments]
        streamed = Streamed(sha256.digest(), kept, crcs)
        self._require_unchanged(streamed)
        return streamed

    def _allocate(self, ranges: Sequence[Range]) -> list[Segment]:
        """One piece of memory for all ranges. The kernel clears its pages as they are first read into, while others are
        hashed; a bytearray would be cleared as a whole before.
        """
        size = sum(stop - start for start, stop in ranges)
        try:
            memory = memoryview(mmap.mmap(-1, size)) if size else memoryview(b"")
        except OSError as error:
            raise StorageError(f"not enough memory for {size} bytes of it", path=self.path) from error
        segments, used = [], 0
        for start, stop in ranges:
            segments.append(Segment(start, memory[used : used + stop - start]))
            used += stop - start
        return segments

    def _fill(self, buffer: memoryview, offset: int) -> None:
        """Read exactly `buffer`'s length, straight into it."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._file, [buffer[done:]], offset + done)
            except OSError as error:
                raise StorageError(f"cannot be read ({error.strerror})", path=self.path) from error
            if count == 0:
                raise ChangedWhileRead(
                    "the file was cut short while it was read",
                    path=self.path,
                    expected=f"{self.size} bytes",
                    found=f"{offset + done}",
                )
            done += count

    def _require_unchanged(self, streamed: Streamed) -> None:
        before, after = (
            (status.st_size, status.st_mtime_ns, status.st_ino) for status in (self._opened, os.fstat(self._file))
        )
        same_bytes = all(streamed.view(*where) == data for where, data in self._peeked.items())
        if before != after or not same_bytes:
            raise ChangedWhileRead(
                "the file changed while it was read",
                path=self.path,
                hint="Let the trainer finish writing it, then try again",
            )


def _open_regular(path: str) -> int:
    try:
        # O_NONBLOCK: opening a FIFO nobody writes to would otherwise never return.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound("no such file", path=path) from error
    except ValueError as error:  # a NUL byte, or text that no file name can hold
        raise NotFound("not a possible file name", path=ascii(path)) from error
    except OSError as error:
        raise StorageError(f"cannot be opened ({error.strerror})", path=path) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise MalformedFile("not a regular file", path=path)
    return file


def _merged(ranges: Iterable[tuple[int, int]], size: int) -> list[Range]:
    """Disjoint, sorted, non-empty ranges that cover the same bytes; so together never longer than the file."""
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if not 0 <= start <= stop <= size:
            raise ValueError(f"bytes {start} to {stop} do not lie in a file of {size}")
        if start == stop:
            continue
        if merged and start <= merged[-1].stop:
            merged[-1] = Range(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(Range(start, stop))
    return merged


class _Piece(NamedTuple):
    """One read: its limits, the segment that keeps it, and the checked range that it is part of."""

    start: int
    stop: int
    segment: Segment | None
    check: Range | None


def _pieces(size: int, segments: Iterable[Segment], checked: Iterable[Range]) -> Iterator[_Piece]:
    """Cut a file into reads of at most CHUNK bytes, none of which crosses the edge of a segment or a checked range."""
    entered = {segment.start: segment for segment in segments}
    checks = {limits.start: limits for limits in checked if limits.start < limits.stop}
    left = {segment.start + len(segment.data) for segment in entered.values()}
    done = {limits.stop for limits in checks.values()}
    segment, check = None, None
    for edge, following in pairwise(sorted({0, size, *entered, *left, *checks, *done})):
        segment = entered.get(edge, None if edge in left else segment)
        check = checks.get(edge, None if edge in done else check)
        for start in range(edge, following, CHUNK):
            yield _Piece(start, min(start + CHUNK, following), segment, check)
