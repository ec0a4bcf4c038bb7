"""What an adapter directory holds, read: the tensors by what they do to a base, and the settings that say how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.core.model import Lora, LoraPair
from registry.core.tensor import Tensor


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
    unknown: tuple[str, ...]
    unsupported: tuple[str, ...]
