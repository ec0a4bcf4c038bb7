"""Shards as verl saves them: real DTensors of a real process group, one torch.save for each rank. Run as a program by
`make_shards`, since a process group is one process's affair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")


def full_state(r: int) -> dict[str, torch.Tensor]:
    """The tensors before they are split: factors of two modules, under the keys that a peft model has."""
    generator = torch.Generator().manual_seed(r)
    return {
        f"base_model.model.{module}.lora_{part}.default.weight": torch.randn(*shape, generator=generator)
        for module in MODULES
        for part, shape in (("A", (r, 16)), ("B", (24, r)))
    }


KINDS = {
    1: ((3, "Shard(0)"),),
    2: ((3, "Shard(0)"), (4, "Shard(0)"), (3, "Shard(1)"), (3, "Replicate()"), (3, "Partial()")),
    3: ((1, "Shard(0)"), (4, "Shard(0)")),
}
"""What is made by one process group of so many ranks: the rank of the LoRA, and how its tensors are placed."""


def make_shards(directory: Path, world: int) -> dict[tuple[int, str], Path]:
    """Checkpoints' `actor` directories with one shard for each of so many ranks, one directory for each of `KINDS`."""
    directory.mkdir(parents=True)
    made = {kind: directory / f"r{kind[0]}-{number}" for number, kind in enumerate(KINDS[world])}
    for (r, _), actor in made.items():
        actor.mkdir()
        stated = {"r": r, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
        (actor / "lora_train_meta.json").write_text(json.dumps(stated))
        (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    arguments = [sys.executable, "-m", "tests.support.sharding", str(directory), str(world)]
    subprocess.run(arguments, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    return made


def _save(rank: int, directory: str, world: int) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{directory}/sync", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    places = {"Shard(0)": Shard(0), "Shard(1)": Shard(1), "Replicate()": Replicate()}
    for number, (r, placement) in enumerate(KINDS[world]):
        state: dict[str, Any] = {}
        for key, tensor in full_state(r).items():
            if placement == "Partial()":
                state[key] = DTensor.from_local(tensor, mesh, [Partial()], run_check=False)
            else:
                state[key] = distribute_tensor(tensor, mesh, [places[placement]])
            base = key.replace(".lora_A.default.", ".base_layer.")
            if base != key:
                state[base] = distribute_tensor(torch.zeros(24, 16), mesh, [Shard(0)])
        torch.save(state, f"{directory}/r{r}-{number}/model_world_size_{world}_rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as mp

    mp.spawn(_save, args=(sys.argv[1], int(sys.argv[2])), nprocs=int(sys.argv[2]))
