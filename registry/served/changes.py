"""What an adapter does to one tensor of the base."""

from __future__ import annotations

from dataclasses import dataclass

from registry.core.model import LoraPair
from registry.core.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LoraChange:
    """W + scale * (B @ A).

    Attributes:
        pair: A [r, in] and B [out, r]; of an embedding, A [r, rows] and B [dim, r].
        scale: alpha / r or alpha / sqrt(r).
        transposed: W is stored [in, out] (GPT-2's Conv1D, and every embedding: [rows, dim]).
    """

    pair: LoraPair
    scale: float
    transposed: bool

    @property
    def module(self) -> str:
        """The adapter's name of the module."""
        return self.pair.module


@dataclass(frozen=True, slots=True, eq=False)
class DoraChange:
    """magnitude / ||V|| * V with V = W + scale * (B @ A), norms and magnitude [out] per output (arXiv 2402.09353)."""

    pair: LoraPair
    scale: float
    transposed: bool
    magnitude: Tensor

    @property
    def module(self) -> str:
        """The adapter's name of the module."""
        return self.pair.module


@dataclass(frozen=True, slots=True, eq=False)
class BiasChange:
    """bias + scale * `lora_B.bias` (peft's `lora_bias`), both [out]."""

    module: str
    bias: Tensor
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class ReplaceChange:
    """Another tensor, cast to W's dtype, in W's place; where the module has a LoRA too, `then` is applied to it."""

    tensor: Tensor
    then: LoraChange | DoraChange | None = None


Change = LoraChange | DoraChange | BiasChange | ReplaceChange
