"""Reading safetensors files: a strict look at the header, and tensors as ranges of bytes.

The format: eight bytes of little-endian header length, a JSON object, then the tensors without holes or overlaps.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from registry.core import jsontext
from registry.core.dtypes import BY_SAFETENSORS, DType
from registry.core.errors import MalformedFile
from registry.core.tensor import Tensor, contiguous_strides
from registry.disk.files import translated

_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # the stock reader's limit
_MAX_DIMENSIONS = 64
_LFS_POINTER = b"version https://git-lfs"
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file: element type, shape, and the bytes from `start` up to `stop` of the whole file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """What a file's header says: its tensors by name, in file order, and its metadata."""

    tensors: Mapping[str, Entry]
    metadata: Mapping[str, str]


def read_header(file: BinaryIO) -> Header:
    """Read and check the header of an open safetensors file.

    Raises:
        MalformedFile: the file is not one, is cut short, or its header contradicts itself or the file's size.
        StorageError: it cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    return header_of(lambda offset, length: _read(file, offset, length), size, str(file.name))


def header_of(read: Callable[[int, int], bytes], size: int, path: str) -> Header:
    """The same for a file of `size` bytes, of which `read` gives a range by offset and length."""
    length = int.from_bytes(read(0, min(_LENGTH_BYTES, size)), "little")
    if length > size - _LENGTH_BYTES:
        if read(0, min(size, len(_LFS_POINTER))) == _LFS_POINTER:
            raise MalformedFile("a Git LFS pointer, not the file itself", path=path, hint="Run `git lfs pull`")
        raise MalformedFile("truncated, or not a safetensors file", path=path, found=f"{size} bytes")
    if length > _MAX_HEADER:
        raise MalformedFile("the header is too large", path=path, found=length, expected=f"at most {_MAX_HEADER}")
    return _parse(read(_LENGTH_BYTES, length), size, path)


def tensors_in(header: Header, data: memoryview) -> dict[str, Tensor]:
    """The tensors by name, over `data`: the bytes of the whole file."""
    return {
        name: Tensor(entry.dtype, entry.shape, contiguous_strides(entry.shape), data[entry.start : entry.stop])
        for name, entry in header.tensors.items()
    }


def read_into(file: BinaryIO, entry: Entry, buffer: memoryview) -> None:
    """Fill `buffer` (of `entry.nbytes` bytes) with a tensor's bytes.

    Raises:
        MalformedFile: the file is shorter than its header says.
    """
    read_range(file, entry.start, buffer)


def read_range(file: BinaryIO, offset: int, buffer: memoryview) -> None:
    """Fill `buffer` with the file's bytes from `offset` on.

    Raises:
        MalformedFile: the file ends before the buffer is full.
    """
    done = 0
    while done < len(buffer):
        with translated(str(file.name)):
            count = os.preadv(file.fileno(), [buffer[done:]], offset + done)
        if count == 0:
            raise MalformedFile("truncated", path=file.name)
        done += count


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    buffer = bytearray(length)
    read_range(file, offset, memoryview(buffer))
    return bytes(buffer)


def _parse(text: bytes, size: int, path: str) -> Header:
    header = jsontext.parse(text, path)
    if not isinstance(header, dict):
        raise MalformedFile("the header is not a JSON object", path=path)
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise MalformedFile("__metadata__ is not a map from text to text", path=path)
    begin = _LENGTH_BYTES + len(text)
    entries = sorted((_entry(name, value, begin, path) for name, value in header.items()), key=_extent)
    _require_seamless(entries, begin, size, path)
    return Header({entry.name: entry for entry in entries}, metadata)


def _entry(name: str, value: Any, begin: int, path: str) -> Entry:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise MalformedFile("not a tensor's entry", path=path, key=name)
    if dtype not in BY_SAFETENSORS:
        raise MalformedFile("unknown element type", path=path, key=name, found=dtype)
    whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in (*shape, start))
    if not whole or len(shape) > _MAX_DIMENSIONS:
        raise MalformedFile("not a shape", path=path, key=name, found=shape)
    entry = Entry(name, BY_SAFETENSORS[dtype], tuple(shape), begin + start, begin + stop)
    if entry.nbytes != math.prod(shape) * entry.dtype.itemsize:
        raise MalformedFile(
            "shape and offsets disagree",
            path=path,
            key=name,
            found=f"{entry.nbytes} bytes",
            expected=f"{dtype} {shape}",
        )
    return entry


def _extent(entry: Entry) -> tuple[int, int]:
    return entry.start, entry.stop


def _require_seamless(entries: list[Entry], begin: int, size: int, path: str) -> None:
    ends = [begin, *(entry.stop for entry in entries)]
    starts = [*(entry.start for entry in entries), size]
    for end, start in zip(ends, starts, strict=True):
        if start > end:
            raise MalformedFile("bytes that belong to no tensor", path=path, found=f"{end} to {start}")
        if start < end:
            problem = "truncated" if start == size else "tensors overlap"
            raise MalformedFile(problem, path=path, found=f"{start}", expected=f"{end}")
