"""adapter_model.safetensors in canonical form: the same LoRA gives the same bytes on any machine.

The stock writer orders `__metadata__` at random (safetensors#584), so the header is written here: the stock tensor
order (type, widest first, then name), sorted metadata, compact JSON, spaces up to a multiple of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from registry.core import jsontext
from registry.core.dtypes import FILE_ORDER
from registry.core.model import PEFT_PREFIX, Lora
from registry.core.tensor import Tensor

_ALIGNMENT = 8
_LENGTH_BYTES = 8


class Weights(Protocol):
    """The bytes of an adapter_model.safetensors."""

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        ...

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes in order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A file as it was found."""

    data: memoryview

    @property
    def size(self) -> int:
        return len(self.data)

    def chunks(self) -> Iterator[memoryview]:
        yield self.data


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """A file made here, not yet joined: its header (length field included) and its tensors in file order."""

    header: bytes
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        return len(self.header) + sum(tensor.nbytes for tensor in self.tensors)

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes; a tensor's are borrowed where they are contiguous already."""
        yield memoryview(self.header)
        for tensor in self.tensors:
            yield tensor.contiguous()


def encode(lora: Lora) -> LaidOut:
    """Lay out `lora` as `base_model.model.<module>.lora_A.weight` and `.lora_B.weight`, bits unchanged."""
    return lay_out(named(lora), lora.settings.function())


def named(lora: Lora) -> dict[str, Tensor]:
    """The factors under the keys that peft gives them."""
    return {
        f"{PEFT_PREFIX}{pair.module}.lora_{factor}.weight": tensor
        for pair in lora.pairs
        for factor, tensor in (("A", pair.a), ("B", pair.b))
    }


def lay_out(tensors: Mapping[str, Tensor], function: Mapping[str, Any]) -> LaidOut:
    """Lay out tensors by key, bits unchanged; `function` is what else decides what they compute."""
    ordered = sorted(tensors.items(), key=lambda item: (FILE_ORDER[item[1].dtype], item[0]))
    metadata = {"format": "pt", "lora": jsontext.compact(function).decode()}
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": tensor.dtype.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = jsontext.compact_in_order(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    return LaidOut(len(text).to_bytes(_LENGTH_BYTES, "little") + text, tuple(tensor for _, tensor in ordered))
