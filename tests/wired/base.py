"""The base model: a Qwen3.5 decoder small enough for a CPU, random weights from a fixed seed, kept as a local
`config.json` and `model.safetensors`. No hub access."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

CONFIG = Qwen3_5TextConfig(
    architectures=["Qwen3_5ForCausalLM"],
    dtype="bfloat16",
    vocab_size=256,  # tokens are bytes
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    max_position_embeddings=128,
    initializer_range=0.1,  # at the usual 0.02 so narrow a model can hardly move its output head
    use_cache=False,
)


def make_base(base_dir: Path, *, seed: int = 0) -> None:
    """Write a freshly initialised base, every tensor bfloat16, to `base_dir`, which must hold no weights yet."""
    base_dir.mkdir(parents=True, exist_ok=True)
    weights = base_dir / "model.safetensors"
    if weights.exists():
        raise FileExistsError(weights)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen3_5ForCausalLM(CONFIG)
    state = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    CONFIG.save_pretrained(base_dir)
    save_file(state, weights, metadata={"format": "pt"})


def load_base(base_dir: Path) -> tuple[Qwen3_5ForCausalLM, dict[str, Tensor]]:
    """Return the frozen model of `base_dir`, and its bfloat16 tensors by name.

    The weights are assigned into an fp32 skeleton instead of casting the model, as `from_pretrained` does: a cast
    would also round the rotary frequencies, a buffer that no file holds.
    """
    weights = load_file(base_dir / "model.safetensors")
    with torch.random.fork_rng(devices=[]):  # the skeleton's own initialisation draws from the global generator
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig.from_pretrained(base_dir))
    model.load_state_dict(weights, assign=True)
    model.requires_grad_(False)
    model.train(mode=False)
    return model, weights
