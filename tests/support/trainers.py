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


def _pickle(directory: Path) -> Path:
    torch.save(load_file(directory / WEIGHTS), directory / PICKLED)
    (directory / WEIGHTS).unlink()
    return directory


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
    """What its inference engines are given."""
    directory = _copied(adapter, run / "broadcasts" / f"step_{step}")
    rekey(directory, lambda key: key.removeprefix(PREFIX))
    (directory / "STABLE").touch()
    return directory


def prime_rl_weights(run: Path, step: int, adapter: Path) -> Path:
    """What it keeps: the merged model, and the adapter beside it where that is asked for."""
    directory = run / "weights" / f"step_{step}"
    _pickle(_copied(adapter, directory / "lora_adapters"))
    save_file({"lm_head.weight": torch.zeros(4, 4)}, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
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
    (directory / "config.json").write_text("{}")
    (run / "_actor" / f"global_step{step}").mkdir(parents=True)
    return directory


def openrlhf_zero_3(run: Path, step: int, adapter: Path) -> Path:
    return _pickle(openrlhf(run, step, adapter))


def torchtune(run: Path, step: int, adapter: Path) -> Path:
    directory = _copied(adapter, run / f"epoch_{step}")
    torch.save(torchtunes_own(), directory / "adapter_model.pt")
    return directory


def torchtune_bin(run: Path, step: int, adapter: Path) -> Path:
    return _pickle(torchtune(run, step, adapter))


def torchtunes_own() -> dict[str, torch.Tensor]:
    """The tensors as torchtune names them, for its own use."""
    module = "layers.0.attn.q_proj"
    return {f"{module}.lora_a.weight": torch.ones(4, 8), f"{module}.lora_b.weight": torch.ones(8, 4)}


def miles(run: Path, step: int, adapter: Path) -> Path:
    directory = run / f"iter_{step:07d}"
    inside = _pickle(_copied(adapter, directory / "adapter"))
    config = json.loads((inside / CONFIG).read_text())
    kept = ("peft_type", "r", "lora_alpha", "target_modules", "lora_dropout", "bias", "task_type")
    (inside / CONFIG).write_text(json.dumps({key: config[key] for key in kept}, indent=2))
    torch.save({"decoder.adapter.linear_in.weight": torch.zeros(4, 8)}, inside / "adapter_megatron_rank0.pt")
    torch.save({"iteration": step}, inside / "training_state_rank0.pt")
    return directory


MAKERS: dict[str, Maker] = {
    "transformers": transformers,
    "verl": verl,
    "prime-rl": prime_rl,
    "prime-rl: weights": prime_rl_weights,
    "areal": areal,
    "nemo-automodel": nemo_automodel,
    "openrlhf": openrlhf,
    "openrlhf: ZeRO-3": openrlhf_zero_3,
    "torchtune": torchtune,
    "torchtune: bin": torchtune_bin,
    "miles": miles,
}
"""By producer, and after a colon which of its layouts."""

VERBATIM = frozenset({"transformers", "verl", "nemo-automodel", "openrlhf", "torchtune"})
"""Of the others a derived adapter is made: vLLM finds no tensors of such keys, or in such a file."""


def producer_of(label: str) -> str:
    return label.partition(":")[0]


def adapter_in(checkpoint: Path) -> Path:
    """The directory in a checkpoint that has the adapter."""
    return next(path.parent for path in checkpoint.rglob(CONFIG))


def weaken(checkpoint: Path) -> None:
    """Let the config state the alpha that some versions of verl do."""
    edit_config(adapter_in(checkpoint), lora_alpha=0)
