"""The zip container of a torch.save file: where each record's bytes lie. Strict, because two readers that disagree
about where a record starts would disagree about the weights. Knows nothing of pickles or tensors."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from registry.checkpoints.source import Source
from registry.core.errors import MalformedFile

MAX_DIRECTORY = 64 << 20
"""Largest central directory that is read, in bytes; torch needs about 60 per tensor."""

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_FILE, _DIRECTORY, _LAST = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_LAST64, _POINTER64 = b"PK\x06\x06", b"PK\x06\x07"
_FULL16, _FULL32 = 0xFFFF, 0xFFFF_FFFF  # "see the zip64 field"
_ENCRYPTED = 1 << 0 | 1 << 6
_MAX_COMMENT = 0xFFFF
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_GIT_LFS = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of the archive.

    Attributes:
        offset: where the record's local header starts.
        size: bytes of data.
        crc32: of the data, or 0 where torch was told not to compute it.
        limit: where the next thing in the file starts: no byte of this record lies there or beyond.
    """

    offset: int
    size: int
    crc32: int
    limit: int


class Record(NamedTuple):
    """Where one record's data lies, and its CRC-32 (0 where none was computed)."""

    start: int
    stop: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Archive:
    """The directory of one torch.save file.

    Attributes:
        root: the folder that every record is in.
        entries: by name, without that folder.
    """

    root: str
    entries: Mapping[str, Entry]

    def locate(self, source: Source, name: str) -> Record:
        """Find a record's data, checking its local header against the directory.

        Raises:
            MalformedFile: there is no such record, or the two headers disagree.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise MalformedFile("the archive has no such record", path=source.path, key=name)
        full_name = f"{self.root}/{name}".encode()
        signature, _, flags, method, _, _, crc, stored, size, name_length, extra_length = _LOCAL.unpack(
            source.peek(entry.offset, _LOCAL.size)
        )
        start = entry.offset + _LOCAL.size + name_length + extra_length
        if signature != _FILE or name_length != len(full_name) or start + entry.size > entry.limit:
            _fail(source, "the record's own header is damaged", name)
        tail = source.peek(entry.offset + _LOCAL.size, name_length + extra_length)
        if tail[:name_length] != full_name or method or flags & _ENCRYPTED:
            _fail(source, "the record's own header differs from the archive's directory", name)
        stored, size = _widened(source, tail[name_length:], stored, size)
        # torch streams: it writes zeros here and the true values behind the data and in the directory.
        if {stored, size} - {0, entry.size} or crc not in (0, entry.crc32):
            _fail(source, "the record's own header differs from the archive's directory", name)
        return Record(start, start + entry.size, entry.crc32)


def read_archive(source: Source) -> Archive:
    """Read the directory at the end of a torch.save file.

    Records are stored, never compressed, and no two overlap: so the sizes add up to no more than the file itself, and
    there is no such thing as a zip bomb here.

    Raises:
        MalformedFile: for anything that torch.save does not write; says what it is instead, where that is known.
    """
    _require_zip(source)
    start, stop, count = _find_directory(source)
    lines = sorted(_read_directory(source, source.peek(start, stop - start), count))
    if not lines or lines[0].offset != 0:
        _fail(source, "the archive does not start with a record")
    root = lines[0].name.partition("/")[0]
    _require_checkpoint(source, {line.name.partition("/")[2] for line in lines})
    entries: dict[str, Entry] = {}
    for line, limit in zip(lines, [*(line.offset for line in lines[1:]), start], strict=True):
        folder, _, name = line.name.partition("/")
        if folder != root or not name:
            _fail(source, f"the record lies outside the folder {root!r}", line.name)
        if name in entries:
            _fail(source, "the archive names this record twice", line.name)
        if line.method:
            _fail(source, "the record is compressed, which torch.save never does", line.name)
        if line.flags & _ENCRYPTED:
            _fail(source, "the record is encrypted", line.name)
        if line.offset + _LOCAL.size + len(line.name.encode()) + line.size > limit:
            _fail(source, "the record overlaps what comes after it", line.name)
        entries[name] = Entry(line.offset, line.size, line.crc32, limit)
    return Archive(root, entries)


def _fail(source: Source, problem: str, key: str | None = None) -> NoReturn:
    raise MalformedFile(problem, path=source.path, key=key)


def _require_zip(source: Source) -> None:
    head = source.peek(0, min(source.size, 32))
    if head.startswith(_FILE):
        return
    if not head:
        _fail(source, "the file is empty")
    if head.startswith(_GIT_LFS):
        raise MalformedFile("a Git LFS pointer, not the file itself", path=source.path, hint="Run `git lfs pull`")
    if head.startswith(_LEGACY):
        raise MalformedFile(
            "legacy (non-zip) torch.save format", path=source.path, hint="Save it again with torch 1.6 or later"
        )
    _fail(source, "not a torch.save file (no zip archive)")


def _require_checkpoint(source: Source, names: Collection[str]) -> None:
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        _fail(source, "a TorchScript archive, which holds a program and not a checkpoint")
    if "data.pkl" not in names:
        _fail(source, "not a torch.save file: the archive has no data.pkl")


def _find_directory(source: Source) -> tuple[int, int, int]:
    """Where the central directory starts and stops, and how many records it lists."""
    stop = _find_end(source)
    _, disk, first_disk, here, count, size, offset, _ = _END.unpack(source.peek(stop, _END.size))
    pointer = stop - _LOCATOR.size
    if pointer >= _END64.size and source.peek(pointer, len(_POINTER64)) == _POINTER64:
        stop = pointer - _END64.size
        narrow = (here, count, size, offset)
        signature, length, _, _, disk, first_disk, here, count, size, offset = _END64.unpack(
            source.peek(stop, _END64.size)
        )
        expected = (_POINTER64, 0, stop, 1), (_LAST64, _END64.size - 12)
        found = _LOCATOR.unpack(source.peek(pointer, _LOCATOR.size)), (signature, length)
        wide = zip(narrow, (here, count, size, offset), (_FULL16, _FULL16, _FULL32, _FULL32), strict=True)
        if found != expected or any(low not in (high, full) for low, high, full in wide):
            _fail(source, "the zip64 end of the archive is damaged")
    if disk or first_disk or here != count:
        _fail(source, "the archive spans several disks")
    if offset + size != stop:
        _fail(source, "the archive's directory does not lie where its end says")
    if size > MAX_DIRECTORY:
        _fail(source, f"the archive's directory is larger than {MAX_DIRECTORY} bytes")
    return offset, stop, count


def _find_end(source: Source) -> int:
    """Offset of the end-of-archive record, whose comment, if any, must reach exactly to the end of the file."""
    length = min(source.size, _END.size + _MAX_COMMENT)
    tail = source.peek(source.size - length, length)
    at = tail.rfind(_LAST)
    any_end = at >= 0
    while at >= 0:
        record = tail[at : at + _END.size]
        if len(record) == _END.size and at + _END.size + _END.unpack(record)[-1] == length:
            return source.size - length + at
        at = tail.rfind(_LAST, 0, at)
    _fail(source, "bytes follow the end of the archive" if any_end else "truncated: the archive's end is missing")


class _Line(NamedTuple):
    """One line of the central directory, as it is written."""

    offset: int
    name: str
    size: int
    crc32: int
    method: int
    flags: int


def _read_directory(source: Source, data: bytes, count: int) -> Iterator[_Line]:
    at = 0
    for _ in range(count):
        header = data[at : at + _CENTRAL.size]
        if len(header) != _CENTRAL.size:
            _fail(source, "the archive's directory is shorter than its end says")
        signature, _, _, flags, method, _, _, crc, stored, size, *lengths, disk, _, _, offset = _CENTRAL.unpack(header)
        if signature != _DIRECTORY:
            _fail(source, "the archive's directory is damaged")
        name_at = at + _CENTRAL.size
        extra_at = name_at + lengths[0]
        at = extra_at + lengths[1] + lengths[2]
        name = _decode_name(source, data[name_at:extra_at])
        size, stored, offset = _widened(source, data[extra_at : extra_at + lengths[1]], size, stored, offset)
        if disk or (stored != size and not method):
            _fail(source, "the archive's directory is damaged", name)
        yield _Line(offset, name, size, crc, method, flags)
    if at != len(data):
        _fail(source, "the archive's directory is longer than its entries")


def _decode_name(source: Source, raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFile("a record's name is not UTF-8", path=source.path) from error
    parts = name.split("/")
    if "" in parts or ".." in parts or "\\" in name or "\0" in name:
        _fail(source, "a record's name is not a plain relative path", ascii(name))
    return name


def _widened(source: Source, extra: bytes, *values: int) -> list[int]:
    """Replace each value that is saturated by its 64-bit form from the zip64 extra field."""
    wide = iter(_zip64_values(source, extra) if _FULL32 in values else ())
    result = [next(wide, -1) if value == _FULL32 else value for value in values]
    if -1 in result:
        _fail(source, "a zip64 size is missing")
    return result


def _zip64_values(source: Source, extra: bytes) -> tuple[int, ...]:
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        field = extra[at + 4 : at + 4 + length]
        if tag == 1:
            whole = len(field) // 8
            return struct.unpack_from(f"<{whole}Q", field)
        at += 4 + length
    _fail(source, "a zip64 field is missing")
