"""A generated Llama of about 2 GiB in bf16, a LoRA of rank 16 on all its projections, and the run that trained it.

Usage: python -m tests.bench.model_data DIRECTORY
Makes DIRECTORY/base, and DIRECTORY/run with one checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, INTERMEDIATE, HEADS, VOCABULARY, RANK = 18, 2048, 6144, 16, 32000, 16
SHAPES = {
    **{f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"},
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}


def make(directory: Path) -> None:
    """Write everything, shard by shard."""
    generator = torch.Generator().manual_seed(0)
    base = directory / "base"
    base.mkdir(parents=True)

    def random(*shape: int, scale: float = 0.02) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32).mul_(scale)

    shards: dict[str, str] = {}
    state: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shard = {f"{prefix}.{name}.weight": random(*shape).bfloat16() for name, shape in SHAPES.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shard[f"{prefix}.{norm}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
        for name, (rows, columns) in SHAPES.items():
            state[f"{prefix}.{name}.lora_A.weight"] = random(RANK, columns)
            state[f"{prefix}.{name}.lora_B.weight"] = random(rows, RANK, scale=0.002)
        _save(base, f"layer-{layer}.safetensors", shard, shards)
    ends = {name: random(VOCABULARY, HIDDEN).bfloat16() for name in ("model.embed_tokens.weight", "lm_head.weight")}
    _save(base, "ends.safetensors", ends | {"model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)}, shards)
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    (base / "config.json").write_text(json.dumps(CONFIG))

    checkpoint = directory / "run" / "ckpt" / "iter-1"
    checkpoint.mkdir(parents=True)
    torch.save({"iteration": 1, "lora": {"r": RANK, "alpha": 32, "state": state}}, checkpoint / "trainer.pt")
    digest = hashlib.sha256((checkpoint / "trainer.pt").read_bytes()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps({"files": {"trainer.pt": digest}}))
    (directory / "run" / "config.json").write_text(json.dumps({"run_id": "bench", "model": {"base": str(base)}}))


def _save(base: Path, name: str, tensors: dict[str, torch.Tensor], shards: dict[str, str]) -> None:
    save_file(tensors, base / name, metadata={"format": "pt"})
    shards.update(dict.fromkeys(tensors, name))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
