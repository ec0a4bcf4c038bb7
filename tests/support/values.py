"""The core's values as torch makes them, so that torch can be the judge of what this project does with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from registry.adapter import encode
from registry.checkpoints import read_checkpoint
from registry.core import records
from registry.core.digest import Digest
from registry.core.dtypes import BY_NAME
from registry.core.model import Checkpoint, Lora, LoraPair, LoraSettings, ReadOptions
from registry.core.records import Record
from registry.core.tensor import Tensor
from tests.support.runs import write_checkpoint


def digest_of(name: str) -> Digest:
    """The digest of something that need not exist."""
    return Digest(hashlib.sha256(name.encode()).hexdigest())


def comparison(subject: Digest, *, at: int = 1, **verdicts: str) -> Record:
    """The record of a comparison: a verdict by engine."""
    return records.make(
        records.COMPARISON,
        subject,
        {
            "recipe": "fp32",
            "base_digest": "b" * 64,
            "conditions": {"torch": "2.9.0", "device": "cpu", "threads": 1},
            "compared_at": f"2026-02-{at:02}T00:00:00.000000Z",
            "engines": [
                {"engine": name, "verdict": verdict, "served_digest": "c" * 64, "survival": None, "stated": {}}
                for name, verdict in verdicts.items()
            ],
        },
    )


def raw(value: torch.Tensor) -> bytes:
    """The elements in row-major order, as torch lays them out."""
    return value.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).numpy().tobytes()


def tensor_of(value: torch.Tensor) -> Tensor:
    """The same view over a copy of its whole storage."""
    dtype = BY_NAME[str(value.dtype).removeprefix("torch.")]
    storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).numpy().tobytes()
    start = value.storage_offset() * dtype.itemsize
    return Tensor(dtype, tuple(value.shape), value.stride(), memoryview(storage)[start:])


def lora_of(state: Mapping[str, torch.Tensor], **settings: Any) -> Lora:
    """The LoRA of a state dict with `<module>.lora_A.weight` and `.lora_B.weight`."""
    modules = sorted({name.rpartition(".lora_")[0] for name in state})
    pairs = (
        LoraPair(module, *(tensor_of(state[f"{module}.lora_{factor}.weight"]) for factor in "AB")) for module in modules
    )
    return Lora(LoraSettings(**{"r": 4, "alpha": 8, **settings}), tuple(pairs))


def file_of(lora: Lora) -> bytes:
    """adapter_model.safetensors."""
    return b"".join(encode(lora).chunks())


def state_of(lora: Lora) -> dict[str, bytes]:
    """The elements of each factor, under the names that the state dict of `tests.support.runs` has."""
    return {
        f"{pair.module}.lora_{factor}.weight": bytes(tensor.contiguous())
        for pair in lora.pairs
        for factor, tensor in (("A", pair.a), ("B", pair.b))
    }


def read(
    directory: Path,
    saved: Any = None,
    /,
    *,
    iteration: int = 3,
    manifest: bool = True,
    config: dict[str, Any] | None = None,
    **options: Unpack[ReadOptions],
) -> Checkpoint:
    """Save a checkpoint with torch, as part of the run in `directory`, and read it with this project."""
    written = write_checkpoint(directory, saved, iteration=iteration, manifest=manifest, config=config)
    return read_checkpoint(str(written), **options)
