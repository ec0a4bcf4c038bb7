"""Tiny real models and PEFT adapters on them, peft's own merge of the two, and stores that hold such adapters."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
    Qwen3Config,
)

from registry.adapter import stored
from registry.core.contents import AdapterContents
from registry.core.digest import Digest
from registry.core.layout import CONFIG, MANIFEST, WEIGHTS
from registry.store import LocalStore

_DECODER = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
PROBE = (torch.arange(24) * 7 % 64).view(2, 12)
"""Tokens on which models are compared."""


def llama(**settings: Any) -> PreTrainedConfig:
    return LlamaConfig(**_DECODER | settings)


def qwen3(**settings: Any) -> PreTrainedConfig:
    return Qwen3Config(**_DECODER | {"head_dim": 16} | settings)


def qwen3_5(**settings: Any) -> PreTrainedConfig:
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
    layers = {"layer_types": ["linear_attention", "full_attention"], "linear_value_head_dim": 8, "head_dim": 16}
    return Qwen3_5TextConfig(**_DECODER | linear | layers | settings)


def mixtral(**settings: Any) -> PreTrainedConfig:
    return MixtralConfig(**_DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2} | settings)


def gpt2(**settings: Any) -> PreTrainedConfig:
    sizes = {"vocab_size": 64, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.1}
    return GPT2Config(**sizes | settings)


def make_base(directory: Path, config: PreTrainedConfig, *, dtype: torch.dtype = torch.bfloat16, **saving: Any) -> Path:
    """Save a model of this config with random weights."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(directory, **saving)
    return directory


def make_adapter(directory: Path, base: Path, **settings: Any) -> Path:
    """Save a PEFT adapter on `base`, every trained parameter of it random."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(1)
        config = LoraConfig(**{"r": 4, "lora_alpha": 8, "init_lora_weights": False} | settings)
        model = get_peft_model(load_model(base), config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * torch.randn(parameter.shape))
        model.save_pretrained(directory)
    return directory


def load_model(directory: Path) -> PreTrainedModel:
    """A saved model, in the dtype it was saved in."""
    with warnings.catch_warnings(action="ignore"):
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    return model.eval()


def load_adapted(base: Path, adapter: Path) -> PeftModel:
    """The base with the adapter beside it, not merged."""
    with warnings.catch_warnings(action="ignore"):
        return PeftModel.from_pretrained(load_model(base), adapter).eval()


def peft_merge(directory: Path, base: Path, adapter: Path, *, safe: bool = False) -> Path:
    """What peft's own `merge_and_unload` makes of the two, saved."""
    with warnings.catch_warnings(action="ignore"):
        load_adapted(base, adapter).merge_and_unload(safe_merge=safe).save_pretrained(directory)
    return directory


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a saved model."""
    return {
        name: tensor for file in sorted(directory.glob("*.safetensors")) for name, tensor in load_file(file).items()
    }


def logits(model: torch.nn.Module) -> torch.Tensor:
    """What a model says to PROBE."""
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=PROBE).logits
    return result


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, int]:
    """How many elements differ in bits, by name, where any do. The names must be the same."""
    assert one.keys() == other.keys()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    counts = {}
    for name, tensor in one.items():
        assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), name
        kind = bits[tensor.element_size()]
        count = int((tensor.view(kind) != other[name].view(kind)).sum())
        if count:
            counts[name] = count
    return counts


def store_adapter(home: Path, adapter: Path) -> Digest:
    """Put a PEFT directory into the store of the registry at `home`, sealed by a manifest of its two digests."""
    store = LocalStore(str(home))
    data = {name: (adapter / name).read_bytes() for name in (WEIGHTS, CONFIG)}
    sealed = {name: {"sha256": hashlib.sha256(bytes_).hexdigest()} for name, bytes_ in data.items()}
    digest = Digest(sealed[WEIGHTS]["sha256"])
    with store.stage() as stage:
        for name, bytes_ in data.items():
            stage.files.write(name, [bytes_])
        stage.files.write(MANIFEST, [json.dumps({"adapter": sealed}).encode()])
        stage.publish(digest)
    return digest


def edit_config(adapter: Path, **changes: Any) -> None:
    """Change settings in an adapter's config; None removes one."""
    file = adapter / CONFIG
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def save_adapter(directory: Path, state: dict[str, torch.Tensor], **config: Any) -> Path:
    """Save tensors and a config as an adapter, whatever they are; None removes a setting."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(state, directory / WEIGHTS)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    (directory / CONFIG).write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    return directory


def factors(module: str, *, r: int = 4, columns: int = 16, rows: int = 24) -> dict[str, torch.Tensor]:
    """lora_A [r, columns] and lora_B [rows, r] of one module, under the keys that peft writes."""
    key = f"base_model.model.{module}"
    return {f"{key}.lora_A.weight": torch.randn(r, columns), f"{key}.lora_B.weight": torch.randn(rows, r)}


def read_adapter(directory: Path) -> AdapterContents:
    """The directory's contents, as this project reads them."""
    with (directory / WEIGHTS).open("rb", buffering=0) as file:
        return stored.read_adapter(file, (directory / CONFIG).read_bytes())
