"""LoRA as peft computes it, the merge of an adapter into its base, and the two ways to round that merge to bfloat16."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

FULL_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LINEAR_ATTENTION = ("in_proj_qkv", "in_proj_z", "out_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
TARGETS = frozenset(FULL_ATTENTION + LINEAR_ATTENTION + MLP)
"""Last name of every module that gets an adapter."""


class LoraWeight(nn.Module):
    """One factor of the update, held under the name that checkpoints and peft use: `lora_A.weight`, `lora_B.weight`."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class LoraLinear(nn.Module):
    """A frozen linear layer (weight [out, in]) with a trained fp32 update: lora_A [r, in], lora_B [out, r].

    Operation for operation `forward` of `peft.tuners.lora.layer.Linear`, so the logits agree bit for bit.
    """

    def __init__(self, base_layer: nn.Linear, *, r: int, scaling: float, generator: torch.Generator) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = LoraWeight(r, base_layer.in_features)
        self.lora_B = LoraWeight(base_layer.out_features, r)
        self.scaling = scaling
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5), generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        update: Tensor = self.lora_B(self.lora_A(x.to(torch.float32))) * self.scaling
        return (result + update).to(result.dtype)


def attach(model: nn.Module, *, r: int, scaling: float, generator: torch.Generator) -> dict[str, nn.Parameter]:
    """Wrap every targeted layer of `model`; return the latent by name: `<module>.lora_A.weight`, `.lora_B.weight`."""
    latent: dict[str, nn.Parameter] = {}
    targets = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in TARGETS
    ]
    for name, layer in targets:
        parent, _, last = name.rpartition(".")
        wrapped = LoraLinear(layer, r=r, scaling=scaling, generator=generator)
        setattr(model.get_submodule(parent), last, wrapped)
        latent[f"{name}.lora_A.weight"] = wrapped.lora_A.weight
        latent[f"{name}.lora_B.weight"] = wrapped.lora_B.weight
    return latent


def merge(
    base: Mapping[str, Tensor], latent: Mapping[str, Tensor], scaling: float, rounding: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Return all of `base` (bfloat16), adapted weights as rounding(fp32(W) + scaling * (B @ A)): the recipe `fp32`."""
    merged = dict(base)
    for key, a in latent.items():
        module, is_a, _ = key.partition(".lora_A.weight")
        if is_a:
            delta = latent[f"{module}.lora_B.weight"] @ a
            merged[f"{module}.weight"] = rounding(base[f"{module}.weight"].to(torch.float32) + scaling * delta)
    return merged


def round_nearest(exact: Tensor) -> Tensor:
    """fp32 to bfloat16, to nearest, ties to even."""
    return exact.to(torch.bfloat16)


def round_stochastic(exact: Tensor, generator: torch.Generator) -> Tensor:
    """fp32 to one of the two neighbouring bfloat16 values, away from zero with probability (distance / ULP).

    A bfloat16 is the high half of a float32, so adding 16 uniform bits and cutting the low half is that rule.
    """
    noise = torch.randint(0, 1 << 16, exact.shape, generator=generator, dtype=torch.int32)
    bits = (exact.contiguous().view(torch.int32) + noise) & -(1 << 16)
    return bits.view(torch.float32).to(torch.bfloat16)
