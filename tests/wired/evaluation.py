"""A score run: an adapter that peft loads, sampled on fixed prompts, and its results as a run directory."""

import random
import warnings
from pathlib import Path

import torch
from peft import PeftModel

from . import layout, policy
from .base import load_base

BATCHES = 8


def evaluate(run_dir: Path, base_dir: Path, adapter: str, adapter_dir: Path, *, seed: int = 0) -> dict[str, float]:
    """Score the adapter in `adapter_dir`, which `adapter` names by digest, and write config.json and run_result.json.

    `reward` is the mean reward per token, as in training; `pass@1` the share of completions that start with a letter.
    On one machine the same adapter has the same scores.
    """
    run_dir.mkdir(parents=True)
    source = {"base": str(base_dir.resolve()), "adapter": adapter, "adapter_dir": str(adapter_dir)}
    layout.write_json(run_dir / "config.json", {"run_id": run_dir.name, "model": source, "seed": seed})
    model, _ = load_base(base_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft still asks transformers for a deprecated attribute
        adapted = PeftModel.from_pretrained(model, adapter_dir).eval()
    generator, chooser = torch.Generator().manual_seed(seed), random.Random(seed)
    rewards = torch.cat(
        [policy.rewards(policy.sample(adapted, policy.prompts(chooser), generator)) for _ in range(BATCHES)]
    )
    scores = {"reward": rewards.mean().item(), "pass@1": rewards[:, 0].mean().item()}
    layout.write_json(
        run_dir / "run_result.json", {"status": "completed", "model": {"adapter": adapter}, "scores": scores}
    )
    return scores
