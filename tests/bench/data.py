"""Generated checkpoints: LoRA factors and Adam's two moments of them, so that a third of the bytes is LoRA.

Usage: python -m tests.bench.data RUN_DIR BYTES
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch

HIDDEN = 4096
RANK = 16
PAIR_BYTES = 2 * RANK * HIDDEN * 4


def make_checkpoint(run: Path, total_bytes: int) -> Path:
    """Write RUN/ckpt/iter-1/ with a trainer.pt of about `total_bytes`; returns the directory."""
    directory = run / "ckpt" / "iter-1"
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    state: dict[str, torch.Tensor] = {}
    for layer in range(total_bytes // 3 // PAIR_BYTES):
        module = f"model.layers.{layer // 7}.self_attn.{'qkvogud'[layer % 7]}_proj"
        state[f"{module}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator)
        state[f"{module}.lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=generator)
    moments = {
        number: {"step": torch.tensor(1.0), "exp_avg": tensor * 0.1, "exp_avg_sq": tensor * tensor}
        for number, tensor in enumerate(state.values())
    }
    saved = {
        "iteration": 1,
        "lora": {"r": RANK, "alpha": 2 * RANK, "state": state},
        "optimizer": {"state": moments, "param_groups": [{"lr": 1e-4, "params": list(range(len(state)))}]},
        "rng": torch.get_rng_state(),
    }
    torch.save(saved, directory / "trainer.pt")
    with (directory / "trainer.pt").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    (directory / "manifest.json").write_text(json.dumps({"files": {"trainer.pt": {"sha256": digest}}}))
    (run / "config.json").write_text(json.dumps({"run_id": run.name, "model": {"base": "bench"}}))
    return directory


if __name__ == "__main__":
    make_checkpoint(Path(sys.argv[1]), int(sys.argv[2]))
