"""Between bytes and torch tensors, without copies."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

from registry.core.dtypes import DType

if TYPE_CHECKING:
    import torch

    from registry.core.tensor import Tensor


def as_tensor(buffer: bytearray | memoryview, dtype: DType, shape: tuple[int, ...]) -> torch.Tensor:
    """A torch tensor of `dtype` and `shape` over the start of a writable buffer, which it keeps alive."""
    import torch  # noqa: PLC0415

    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=getattr(torch, dtype.name))
    return torch.frombuffer(buffer, dtype=getattr(torch, dtype.name), count=count).view(shape)


def load(tensor: Tensor) -> torch.Tensor:
    """A torch tensor with a copy of a core tensor's elements."""
    return as_tensor(bytearray(tensor.contiguous()), tensor.dtype, tensor.shape)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous torch tensor, borrowed: the caller keeps the tensor alive. Needs no numpy."""
    count = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_ubyte * count).from_address(tensor.data_ptr())).cast("B")
