"""What an adapter directory holds, read: the tensors by what they do to a base, and the settings that say how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from registry.core.model import Lora, LoraPair
from registry.core.tensor import Tensor, is_zero


class Extra(NamedTuple):
    """A tensor that is no factor of a linear layer: its module or name, what it is there for, and itself."""

    name: str
    role: str
    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AdapterContents:
    """One adapter. Modules and tensors are named as in the model it was trained on, without `base_model.model.`.

    Attributes:
        lora: the settings, and the factors of linear layers by module.
        config: the whole adapter_config.json.
        embeddings: the factors of embedding layers: `a` is lora_embedding_A [r, rows], `b` lora_embedding_B [dim, r].
        magnitudes: DoRA's magnitude vectors [out] by module: of all pairs, or of none.
        lora_biases: `lora_B.bias` [out] by module: scaled, they are added to the layer's bias.
        replaced: whole tensors by name that take the place of the base's (modules_to_save, saved embeddings).
        biases: the same for biases that were trained (`bias="lora_only"` or `"all"`).
        packed: factors that peft packs for a parameter (all experts in one matrix), as `<module>.lora_A`, `.lora_B`.
        rest: all other tensors, by key without `base_model.model.`.
        unknown: keys of the file that mean nothing here.
        unsupported: settings and tensors that make this adapter more than the above, each named.
    """

    lora: Lora
    config: Mapping[str, Any]
    embeddings: tuple[LoraPair, ...]
    magnitudes: Mapping[str, Tensor]
    lora_biases: Mapping[str, Tensor]
    replaced: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    packed: Mapping[str, Tensor]
    rest: Mapping[str, Tensor]
    unknown: tuple[str, ...]
    unsupported: tuple[str, ...]

    def extras(self) -> Iterator[Extra]:
        """Every tensor that is no factor of a linear layer."""
        for pair in self.embeddings:
            yield Extra(pair.module, "embedding_A", pair.a)
            yield Extra(pair.module, "embedding_B", pair.b)
        groups = {
            "magnitude": self.magnitudes,
            "lora_B.bias": self.lora_biases,
            "replaced": self.replaced,
            "bias": self.biases,
            "packed": self.packed,
            "other": self.rest,
        }
        for role, group in groups.items():
            yield from (Extra(name, role, tensor) for name, tensor in group.items())

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules that have factors of any kind, sorted."""
        pairs = chain(self.lora.pairs, self.embeddings)
        return tuple(sorted({pair.module for pair in pairs} | {name.rpartition(".")[0] for name in self.packed}))

    @property
    def zero_b(self) -> int:
        """How many lora_B of any kind are all zeros."""
        pairs = chain(self.lora.pairs, self.embeddings)
        packed = (tensor for name, tensor in self.packed.items() if name.endswith(".lora_B"))
        return sum(is_zero(tensor.contiguous()) for tensor in chain((pair.b for pair in pairs), packed))


@dataclass(frozen=True, slots=True, eq=False)
class PeftAdapter:
    """A PEFT adapter that was read, and how it is to be stored.

    Attributes:
        contents: what it means.
        tensors: all of them, by the key that they are stored under.
        config: the text of adapter_config.json that is stored.
        file: the bytes of adapter_model.safetensors that are stored; None where the file is to be laid out anew.
        changes: what is stored otherwise than it was found, a sentence each: then it is a derived adapter.
    """

    contents: AdapterContents
    tensors: Mapping[str, Tensor]
    config: bytes
    file: memoryview | None
    changes: tuple[str, ...]
