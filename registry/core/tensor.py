"""A tensor as bytes: dtype, shape, stride and the storage range they index. Pure memory operations, no arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from registry.core.dtypes import DType

_CAST: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The row-major strides of `shape`, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def extent(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements of storage a view of this shape and stride (in elements) spans, from its first one on."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A dense tensor over borrowed bytes.

    Attributes:
        dtype: element type.
        shape: sizes.
        stride: step per dimension, in elements, never negative.
        storage: the bytes from the tensor's first element on, at least `extent(shape, stride)` elements long.
        big_endian: whether `storage` holds big-endian elements.
    """

    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage: memoryview
    big_endian: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes when contiguous."""
        return self.numel * self.dtype.itemsize

    def contiguous(self) -> memoryview:
        """The elements in row-major order, little-endian: a borrowed view where they lie so already, else a copy."""
        if self.numel == 0:
            return memoryview(b"")
        data = self.storage[: self.nbytes] if self._is_contiguous() else memoryview(_gather(self))
        return memoryview(_byteswapped(data, self.dtype.swap_width)) if self.big_endian else data

    def _is_contiguous(self) -> bool:
        row_major = contiguous_strides(self.shape)
        return all(
            size == 1 or have == want for size, have, want in zip(self.shape, self.stride, row_major, strict=True)
        )


def _gather(tensor: Tensor) -> bytearray:
    shape, stride, itemsize = tensor.shape, tensor.stride, tensor.dtype.itemsize
    if itemsize not in _CAST:  # a 16-byte element moves as two 8-byte halves
        shape, stride = (*shape, 2), (*(2 * step for step in stride), 1)
        itemsize //= 2
    source = tensor.storage[: extent(shape, stride) * itemsize].cast(_CAST[itemsize])
    result = bytearray(tensor.nbytes)
    target = memoryview(result).cast(_CAST[itemsize])
    *outer, row = shape
    *outer_stride, step = stride
    offsets = [0]
    for size, outer_step in zip(outer, outer_stride, strict=True):
        offsets = [offset + index * outer_step for offset in offsets for index in range(size)]
    for number, offset in enumerate(offsets):
        at = number * row
        if step == 0:
            target[at : at + row] = memoryview(bytes(source[offset : offset + 1]) * row).cast(_CAST[itemsize])
        else:
            target[at : at + row] = source[offset : offset + (row - 1) * step + 1 : step]
    return result


def _byteswapped(data: memoryview, width: int) -> bytes:
    if width == 1:
        return bytes(data)
    result = bytearray(len(data))
    for byte in range(width):
        result[byte::width] = bytes(data)[width - 1 - byte :: width]
    return bytes(result)


def count_nonfinite(data: memoryview, dtype: DType) -> int:
    """How many elements of `data` (contiguous, little-endian) are infinite or NaN; 0 for types that have neither.

    The top byte of every element is looked at first: only where one can belong to a non-finite value is the element
    itself decoded, so ordinary weights cost one strided pass.
    """
    mask, width = dtype.exponent_mask, dtype.itemsize
    if mask is None:
        return 0
    top = mask >> (8 * (width - 1))
    count, chunk = 0, 1 << 18
    for start in range(0, len(data), chunk):
        block = bytes(data[start : start + chunk])
        tops = block[width - 1 :: width]
        if not any(byte in tops for byte in _suspects(top)):
            continue
        elements = memoryview(block).cast(_CAST[width])
        count += sum(1 for element in elements if element & mask == mask)
    return count


def _suspects(top: int) -> list[int]:
    """The top bytes whose exponent bits are all set, for either sign and any mantissa bits beside them."""
    return [byte for byte in range(256) if byte & top == top]


def is_zero(data: memoryview) -> bool:
    """Whether every byte of `data` is zero (a tensor of plus zeros)."""
    chunk = 1 << 16
    zeros = bytes(chunk)
    return all(bytes(data[start : start + chunk]) == zeros[: len(data) - start] for start in range(0, len(data), chunk))
