"""One base tensor as a sequence of blocks of rows, each with its merge: what the copies of it are held against."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from registry.core.dtypes import DType
from registry.disk.safetensors import Entry, read_range
from registry.served.changes import Change
from registry.served.plan import Plan
from registry.served.recipes import Scratch, blocks, by_rows, rows_of
from registry.served.tensors import as_tensor, bytes_of
from registry.served.weights import Weights

if TYPE_CHECKING:
    import torch

BLOCK_ELEMENTS = 1 << 18
"""Elements at a time: few enough to stay in a core's cache through all the passes over them."""


class Block(NamedTuple):
    """Some rows of a base tensor; of one that the adapter changes also their merge, in its type, and fp32 update.

    The tensors are on the device that is calculated on; `raw` are the bytes of `base` as they were read.
    """

    raw: memoryview
    base: torch.Tensor
    merged: torch.Tensor | None
    update: torch.Tensor | None


class Workspace(threading.local):
    """One thread's memory, kept from tensor to tensor: fresh pages cost more than what is calculated in them."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.scratch = Scratch()
        self._buffers: dict[str, bytearray] = {}

    def buffer(self, use: str, size: int) -> memoryview:
        """Memory of `size` bytes, valid until the same use asks again."""
        if len(self._buffers.get(use, b"")) < size:
            self._buffers[use] = bytearray(size)
        return memoryview(self._buffers[use])[:size]


class Part:
    """A base tensor on its way through one comparison.

    Args:
        name: of the tensor in the merged model.
        plan: what the adapter changes.
        base: the open base.
        workspace: this thread's memory.
        recipe: of the merge.
        whole: form the whole product B @ A at once, as trainers do, so that its last bits are theirs. Forming it block
            by block gives the same bits on every kernel library seen so far, in a fraction of the time.
    """

    def __init__(self, name: str, plan: Plan, base: Weights, workspace: Workspace, recipe: str, *, whole: bool) -> None:
        self.name = name
        self._stored = base.tensors[plan.source(name)]
        self._change: Change | None = plan.changes.get(name)
        self._workspace, self._recipe, self._whole = workspace, recipe, whole

    @property
    def is_targeted(self) -> bool:
        """Whether the adapter changes this tensor."""
        return self._change is not None

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self._stored.entry.dtype

    @property
    def numel(self) -> int:
        """Its number of elements."""
        return self._stored.entry.nbytes // self.dtype.itemsize

    def blocks(self) -> Iterator[Block]:
        """All of it in order. A block is overwritten when the next one is asked for."""
        entry, change = self._stored.entry, self._change
        if change is None:
            for _, raw, base in self._read(entry, (self.numel,)):
                yield Block(raw, base, None, None)
            return
        device = self._workspace.device
        merge = None if self._whole else by_rows(self._recipe, entry.dtype, change, device)
        if merge is not None:
            for rows, raw, base in self._read(entry, entry.shape):
                yield Block(raw, base, *merge(base, rows))
            return
        buffer = self._workspace.buffer("whole", entry.nbytes)
        read_range(self._stored.file, entry.start, buffer)
        weight = as_tensor(buffer, entry.dtype, entry.shape)
        formed = rows_of(self._recipe, weight, change, self._workspace.scratch)
        for rows in blocks(weight):
            tensors = (tensor.to(device) for tensor in (weight[rows], *formed(rows)))
            yield Block(bytes_of(weight[rows]), *tensors)

    def _read(self, entry: Entry, shape: tuple[int, ...]) -> Iterator[tuple[slice, memoryview, torch.Tensor]]:
        width = entry.nbytes // max(1, shape[0])  # bytes in a row
        step = max(1, BLOCK_ELEMENTS * entry.dtype.itemsize // max(1, width))
        for start in range(0, shape[0], step):
            rows = slice(start, min(start + step, shape[0]))
            buffer = self._workspace.buffer("base", (rows.stop - start) * width)
            read_range(self._stored.file, entry.start + start * width, buffer)
            base = as_tensor(buffer, entry.dtype, (rows.stop - start, *shape[1:]))
            yield rows, buffer, base.to(self._workspace.device)
