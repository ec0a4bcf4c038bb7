"""The files of an aorlta run directory, byte by byte: run config, checkpoints with their manifests, served weights."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Served = Literal["tensors", "digests"]
Rounding = Literal["nearest", "stochastic"]

PEFT_PREFIX = "base_model.model."


def file_sha256(path: Path) -> str:
    """Lower-case hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensor_sha256(tensor: Tensor) -> str:
    """Lower-case hex sha256 of a tensor's elements, row-major, as they lie in memory."""
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_checkpoint(directory: Path, payload: Mapping[str, object]) -> None:
    """`trainer.pt` and the `manifest.json` that gives its hash and size, in a new directory."""
    directory.mkdir(parents=True)
    file = directory / "trainer.pt"
    torch.save(dict(payload), file)
    entry = {"sha256": file_sha256(file), "bytes": file.stat().st_size}
    write_json(directory / "manifest.json", {"iteration": payload["iteration"], "files": {file.name: entry}})


def write_served(
    directory: Path, per_engine: Mapping[str, Mapping[str, Tensor]], *, form: Served, iteration: int, rounding: Rounding
) -> dict[str, Path]:
    """Record in a new directory what each engine was given, one file an engine; return the files by engine.

    `tensors` writes `<engine>.safetensors`; `digests` writes `served-weights.json`, or with several engines
    `served-weights-<engine>.json`.
    """
    directory.mkdir(parents=True)
    files: dict[str, Path] = {}
    for engine, tensors in per_engine.items():
        if form == "tensors":
            files[engine] = directory / f"{engine}.safetensors"
            save_file(dict(tensors), files[engine], metadata={"format": "pt"})
        else:
            suffix = "" if len(per_engine) == 1 else f"-{engine}"
            files[engine] = directory / f"served-weights{suffix}.json"
            facts = {
                "engine": engine,
                "iteration": iteration,
                "rounding": rounding,
                "device": "cpu",
                "threads": torch.get_num_threads(),
                "dtype": "bfloat16",
                "tensors": {
                    name: {"sha256": tensor_sha256(tensor), "shape": list(tensor.shape)}
                    for name, tensor in tensors.items()
                },
            }
            write_json(files[engine], facts)
    return files


def read_adapter(directory: Path) -> tuple[dict[str, Tensor], int, float, str]:
    """A PEFT adapter directory: its latent (`<module>.lora_A.weight`, ...), r, alpha, and its file's sha256."""
    file = directory / "adapter_model.safetensors"
    config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    latent = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in load_file(file).items()}
    return latent, config["r"], config["lora_alpha"], file_sha256(file)
