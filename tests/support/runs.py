"""Small aorlta runs on disk, in the layout of DESIGN 4.1, written by torch itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "model.layers.1.self_attn.q_proj")


def lora_state(*, r: int = 4, modules: tuple[str, ...] = MODULES, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random fp32 factors: lora_A [r, 16], lora_B [24, r] per module."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for module in modules:
        state[f"{module}.lora_A.weight"] = torch.randn(r, 16, generator=generator)
        state[f"{module}.lora_B.weight"] = torch.randn(24, r, generator=generator)
    return state


def contents(state: dict[str, Any], *, iteration: int | None = 3, **lora: Any) -> dict[str, Any]:
    """What a trainer saves: `lora` gives r, alpha and further settings, None leaves one out."""
    settings = {"r": 4, "alpha": 8, **lora}
    return {
        "iteration": iteration,
        "lora": {**{key: value for key, value in settings.items() if value is not None}, "state": state},
        "optimizer": {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4, 16)}}, "param_groups": []},
        "rng": torch.get_rng_state(),
        "step": 12,
    }


def write_checkpoint(
    run: Path, saved: Any = None, *, iteration: int = 3, manifest: bool = True, config: dict[str, Any] | None = None
) -> Path:
    """Save `saved` as RUN/ckpt/iter-<n>/trainer.pt with its manifest, and the run's config.json. The directory."""
    directory = run / "ckpt" / f"iter-{iteration}"
    directory.mkdir(parents=True)
    torch.save(contents(lora_state()) if saved is None else saved, directory / "trainer.pt")
    if manifest:
        write_manifest(directory)
    if config is not None or not (run / "config.json").exists():
        default = {"run_id": run.name, "model": {"base": "org/base", "revision": "main"}, "lora": {"r": 4, "alpha": 8}}
        (run / "config.json").write_text(json.dumps(default if config is None else config))
    return directory


def write_manifest(directory: Path) -> None:
    """manifest.json for the trainer.pt as it is now."""
    data = (directory / "trainer.pt").read_bytes()
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (directory / "manifest.json").write_text(json.dumps({"files": {"trainer.pt": entry}}))
