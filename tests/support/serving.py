"""A tiny decoder as plain tensors, adapters on it, what engines would be served of the two, and the files of all that.

The merges are written out here by themselves, so that they can judge this project's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from registry.core.comparison import Comparison, EngineResult
from registry.core.tensor import is_zero
from registry.served.compare import compare
from registry.served.evidence import open_engines
from registry.served.plan import plan
from registry.served.weights import open_weights
from tests.support.merging import read_adapter, save_adapter
from tests.support.values import raw

State = dict[str, torch.Tensor]

WIDTH, KEYS, INNER, R, ALPHA = 32, 16, 48, 4, 8
LAYERS = ("model.layers.0", "model.layers.1")
SHAPES = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KEYS, WIDTH),
    "self_attn.v_proj": (KEYS, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
MODULES = tuple(f"{layer}.{name}" for layer in LAYERS for name in SHAPES)
Q, K = f"{LAYERS[0]}.self_attn.q_proj", f"{LAYERS[0]}.self_attn.k_proj"
NORM, HEAD, EMBEDDING = f"{LAYERS[0]}.norm.weight", "lm_head.weight", "model.embed_tokens.weight"

Formula = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
FORMULAS: dict[str, Formula] = {
    "fp32": lambda w, a, b, s: (w.float() + s * (b @ a)).to(w.dtype),
    "delta-rounded": lambda w, a, b, s: w + (s * (b @ a)).to(w.dtype),
    "low-precision": lambda w, a, b, s: w + s * (b.to(w.dtype) @ a.to(w.dtype)),
    "prerounded-fp32": lambda w, a, b, s: (w.float() + s * (b.to(w.dtype).float() @ a.to(w.dtype).float())).to(w.dtype),
}
"""How an engine's trainer would write the recipes of DESIGN 4.6."""


def base_state(dtype: torch.dtype = torch.bfloat16) -> State:
    """All tensors of the base."""
    make = torch.Generator().manual_seed(0)
    state = {f"{module}.weight": torch.randn(shape_of(module), generator=make) * 0.1 for module in MODULES}
    state |= {name: torch.randn(64, WIDTH, generator=make) * 0.1 for name in (EMBEDDING, HEAD)}
    state |= {f"{layer}.norm.weight": 1 + 0.1 * torch.randn(WIDTH, generator=make) for layer in LAYERS}
    return {name: tensor.to(dtype) for name, tensor in state.items()}


def shape_of(module: str) -> tuple[int, int]:
    """[out, in]."""
    return SHAPES[module.removeprefix(LAYERS[0]).removeprefix(LAYERS[1]).removeprefix(".")]


def factors_of(modules: Collection[str] = MODULES, *, size: float = 0.05, seed: int = 1) -> State:
    """Random fp32 factors under the names that checkpoints have: `<module>.lora_A.weight`, `.lora_B.weight`."""
    make, state = torch.Generator().manual_seed(seed), {}
    for module in modules:
        rows, columns = shape_of(module)
        state[f"{module}.lora_A.weight"] = torch.randn(R, columns, generator=make)
        state[f"{module}.lora_B.weight"] = torch.randn(rows, R, generator=make) * size
    return state


def modules_of(factors: State) -> list[str]:
    return [name.removesuffix(".lora_A.weight") for name in factors if name.endswith(".lora_A.weight")]


def updates_of(factors: State, scale: float = ALPHA / R) -> State:
    """s * B @ A by the name of the weight it is added to, in fp64."""
    return {
        f"{module}.weight": scale
        * (factors[f"{module}.lora_B.weight"].double() @ factors[f"{module}.lora_A.weight"].double())
        for module in modules_of(factors)
    }


def merge_state(
    base: State, factors: State, *, recipe: str = "fp32", scale: float = ALPHA / R, without: Collection[str] = ()
) -> State:
    """The base with the adapter merged into it, except into the modules `without`."""
    merged = {name: tensor.clone() for name, tensor in base.items()}
    for module in set(modules_of(factors)) - set(without):
        a, b = factors[f"{module}.lora_A.weight"], factors[f"{module}.lora_B.weight"]
        merged[f"{module}.weight"] = FORMULAS[recipe](base[f"{module}.weight"], a, b, scale)
    return merged


def fuse(state: State) -> State:
    """The state as vLLM holds it: q, k, v as the rows of one tensor, and gate, up as those of another."""
    fused = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    parts = [part for each in fused.values() for part in each]
    result = {name: tensor for name, tensor in state.items() if name.split(".")[-2] not in parts}
    for name in state:
        for whole, (first, *rest) in fused.items():
            if name.endswith(f".{first}.weight"):
                stacked = [state[name.replace(first, part)] for part in (first, *rest)]
                result[name.replace(first, whole)] = torch.cat(stacked)
    return result


def save_state(file: Path, state: Mapping[str, torch.Tensor]) -> Path:
    """A safetensors file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)
    return file


def listing_of(state: Mapping[str, torch.Tensor], engine: str = "vllm", **stated: Any) -> dict[str, Any]:
    """What `served-weights.json` says of these tensors."""
    tensors = {
        name: {"sha256": hashlib.sha256(raw(tensor)).hexdigest(), "shape": list(tensor.shape)}
        for name, tensor in state.items()
    }
    return {"engine": engine, "iteration": 3, "rounding": "nearest", **stated, "tensors": tensors}


def save_listing(file: Path, state: Mapping[str, torch.Tensor], engine: str = "vllm", **stated: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(listing_of(state, engine, **stated)))
    return file


class Bench:
    """A directory with a base and an adapter, in which served weights are held against the two."""

    def __init__(self, root: Path, factors: State, base: State | None = None, **config: Any) -> None:
        self.root = root
        self.base = base_state() if base is None else base
        self.factors = factors
        save_state(root / "base" / "model.safetensors", self.base)
        keys = {f"base_model.model.{name}": tensor for name, tensor in factors.items()}
        self.adapter = save_adapter(root / "adapter", keys, **config)

    def compare(self, *served: Path, recipe: str = "auto", workers: int = 2, **options: Any) -> Comparison:
        """Hold files or directories against base + adapter."""
        contents = read_adapter(self.adapter)
        paths = [str(path) for path in served]
        with open_weights(str(self.root / "base")) as base, open_engines(paths) as engines:
            return compare(
                plan(contents, base),
                base,
                engines,
                recipe=recipe,
                workers=workers,
                all_b_zero=all(is_zero(pair.b.contiguous()) for pair in contents.lora.pairs),
                **options,
            )

    def hold(self, served: State, **options: Any) -> EngineResult:
        """The result for one engine that was served these tensors."""
        (result,) = self.compare(save_state(self.root / "served.safetensors", served), **options).engines
        return result

    def hold_listing(self, served: State, **options: Any) -> EngineResult:
        """The same where only the tensors' digests are known."""
        (result,) = self.compare(save_listing(self.root / "served-weights.json", served), **options).engines
        return result
