"""Checkpoints as trainers lay them out, made of a real PEFT adapter by what each project documents or does. Facts, and
none of their code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from registry.core.layout import CONFIG, PICKLED, WEIGHTS
from tests.support.merging import edit_config
from tests.support.taking import PREFIX

Maker = Callable[[Path, int, Path], Path]
"""Lays out an adapter (the last) as the checkpoint of a step of a run; gives the checkpoint's directory."""


def _copied(adapter: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for name in (WEIGHTS, CONFIG):
        shutil.copyfile(adapter / name, to / name)
    return to


def rekey(directory: Path, change: Callable[[str], str]) -> None:
    """Give an adapter's tensors other keys."""
    state = {change(key): tensor for key, tensor in load_file(directory / WEIGHTS).items()}
    save_file(state, directory / WEIGHTS, metadata={"format": "pt"})


def transformers(run: Path, step: int, adapter: Path) -> Path:
    """Trainer, and with it TRL, Unsloth, axolotl and LLaMA-Factory."""
    directory = _copied(adapter, run / f"checkpoint-{step}")
    state = {"global_step": step, "epoch": 0.5, "log_history": [{"loss": 1.0, "step": step}], "max_steps": 100}
    (directory / "trainer_state.json").write_text(json.dumps(state))
    torch.save({"state": {}, "param_groups": []}, directory / "optimizer.pt")
    torch.save({"python": 1}, directory / "rng_state.pth")
    (directory / "README.md").write_text("---\nlibrary_name: peft\n---\n")
    return directory


def verl(run: Path, step: int, adapter: Path) -> Path:
    directory = run / f"global_step_{step}"
    _copied(adapter, directory / "actor" / "lora_adapter")
    config = json.loads((adapter / CONFIG).read_text())
    meta = {"r": config["r"], "lora_alpha": config["lora_alpha"], "task_type": "CAUSAL_LM"}
    (directory / "actor" / "lora_train_meta.json").write_text(json.dumps(meta))
    torch.save({"model": torch.zeros(4)}, directory / "actor" / "model_world_size_2_rank_0.pt")
    torch.save({"epoch": 0}, directory / "data.pt")
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
    return directory


def prime_rl(run: Path, step: int, adapter: Path) -> Path:
    directory = _copied(adapter, run / "broadcasts" / f"step_{step}")
    rekey(directory, lambda key: key.removeprefix(PREFIX))
    (directory / "STABLE").touch()
    return directory


def areal(run: Path, step: int, adapter: Path) -> Path:
    directory = _copied(adapter, run / f"epoch0epochstep{step}globalstep{step}")
    rekey(directory, lambda key: key.replace(".weight", ".default.weight"))
    return directory


def nemo_automodel(run: Path, step: int, adapter: Path) -> Path:
    directory = run / f"epoch_0_step_{step}"
    model = _copied(adapter, directory / "model")
    (model / "automodel_peft_config.json").write_text(json.dumps({"dim": 4, "alpha": 8}))
    (directory / "optim").mkdir()
    return directory


def openrlhf(run: Path, step: int, adapter: Path) -> Path:
    directory = _copied(adapter, run / f"global_step{step}_hf")
    torch.save(load_file(directory / WEIGHTS), directory / PICKLED)
    (directory / WEIGHTS).unlink()
    return directory


def torchtune(run: Path, step: int, adapter: Path) -> Path:
    directory = _copied(adapter, run / f"epoch_{step}")
    torch.save({"layers.0.attn.q_proj.lora_a.weight": torch.zeros(4, 8)}, directory / "adapter_0.pt")
    return directory


def miles(run: Path, step: int, adapter: Path) -> Path:
    return _copied(adapter, run / f"iter_{step:07d}")


MAKERS: dict[str, Maker] = {
    "transformers": transformers,
    "verl": verl,
    "prime-rl": prime_rl,
    "areal": areal,
    "nemo-automodel": nemo_automodel,
    "openrlhf": openrlhf,
    "torchtune": torchtune,
    "miles": miles,
}
VERBATIM = frozenset(MAKERS) - {"prime-rl", "areal", "openrlhf"}
"""Of the others a derived adapter is made: vLLM finds no tensors of such keys, or in such a file."""


def adapter_in(checkpoint: Path) -> Path:
    """The directory in a checkpoint that has the adapter."""
    return next(path.parent for path in checkpoint.rglob(CONFIG))


def weaken(checkpoint: Path) -> None:
    """Let the config state the alpha that some versions of verl do."""
    edit_config(adapter_in(checkpoint), lora_alpha=0)
