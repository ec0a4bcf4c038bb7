"""The files of a merged model, made from the base's one after the other: every tensor is read, changed and handed on
before the next one is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from registry.core import jsontext
from registry.core.errors import Refused
from registry.disk.safetensors import Entry, read_range
from registry.served.plan import Plan
from registry.served.recipes import Scratch, merge_into
from registry.served.tensors import as_tensor
from registry.served.weights import Weights

if TYPE_CHECKING:
    import torch

Inspect = Callable[[memoryview], None]
_COPIED = 4 << 20  # bytes read at a time of tensors that stay as they are
_LENGTH_BYTES = 8
_ALIGNMENT = 8


class MergedModel:
    """A base with an adapter merged into it.

    Holds two changed tensors at a time, the one being made and the one being handed on, and one fp32 tensor of the
    largest one's shape.

    Args:
        base: the open base.
        plan: what changes.
        recipe: one of RECIPES.
    """

    def __init__(self, base: Weights, plan: Plan, recipe: str) -> None:
        self._base = base
        self._plan = plan
        self._recipe = recipe
        largest = max((base.entry(plan.source(name)).nbytes for name in plan.changes), default=0)
        self._buffers = [bytearray(max(largest, _COPIED)) for _ in range(2)]  # pages that are not used cost nothing
        self._scratch = Scratch()

    def file(self, path: str, inspect: Inspect) -> Iterator[memoryview]:
        """The bytes of the file that takes the place of the base's file `path`: same header, order and metadata.

        Tensors that the plan adds come after those of the file that holds what they are made from. A block is
        overwritten when the next but one is asked for, so that one can be made while another is written.

        Args:
            path: one of the base's files.
            inspect: is shown every byte of that file, in order.

        Raises:
            Refused: a merged tensor has infinite or NaN elements.
            MalformedFile, StorageError: the base cannot be read.
        """
        file = self._base.files[path]
        stored = (each.entry for each in self._base.tensors.values() if each.file is file)
        entries = sorted(stored, key=lambda entry: entry.start)
        begin = entries[0].start if entries else os.fstat(file.fileno()).st_size
        added = [
            (name, entry) for entry in entries for name, source in self._plan.added.items() if source == entry.name
        ]
        header = b"".join(map(bytes, self._copied(file, 0, begin, inspect)))
        yield memoryview(_extended(header, added, path) if added else header)
        for entry in entries:
            yield from self._tensor(file, entry.name, entry, inspect)
        for name, entry in added:
            yield from self._tensor(file, name, entry, _ignore)

    def _tensor(self, file: BinaryIO, name: str, entry: Entry, inspect: Inspect) -> Iterator[memoryview]:
        change = self._plan.changes.get(name)
        if change is None:
            yield from self._copied(file, entry.start, entry.stop, inspect)
            return
        block = self._read(file, entry.start, entry.stop, inspect)
        weight = as_tensor(block, entry.dtype, entry.shape)
        merge_into(self._recipe, weight, change, self._scratch)
        if not _is_finite(weight):
            raise Refused("the merged weight has infinite or NaN elements", path=file.name, key=name)
        yield block

    def _copied(self, file: BinaryIO, start: int, stop: int, inspect: Inspect) -> Iterator[memoryview]:
        for offset in range(start, stop, _COPIED):
            yield self._read(file, offset, min(offset + _COPIED, stop), inspect)

    def _read(self, file: BinaryIO, start: int, stop: int, inspect: Inspect) -> memoryview:
        self._buffers.reverse()
        block = memoryview(self._buffers[0])[: stop - start]
        read_range(file, start, block)
        inspect(block)
        return block


def _is_finite(tensor: torch.Tensor) -> bool:
    import torch  # noqa: PLC0415

    return not tensor.numel() or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


def _ignore(_block: memoryview) -> None:
    return None


def _extended(header: bytes, added: list[tuple[str, Entry]], path: str) -> bytes:
    """The header with entries for the added tensors, whose bytes follow those that are there."""
    described = jsontext.parse(header[_LENGTH_BYTES:], path)
    end = max((value["data_offsets"][1] for key, value in described.items() if key != "__metadata__"), default=0)
    for name, entry in added:
        described[name] = {
            "dtype": entry.dtype.safetensors,
            "shape": list(entry.shape),
            "data_offsets": [end, end + entry.nbytes],
        }
        end += entry.nbytes
    text = jsontext.compact_in_order(described)
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
