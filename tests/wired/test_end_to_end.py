"""A LoRA that was really trained goes through the real command, and comes out as what the trainer served."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import PeftConfig
from safetensors.torch import load_file
from torch import Tensor

from registry.core.layout import ADAPTER_FILES
from tests.support.process import CommandLine

from .layout import PEFT_PREFIX, file_sha256
from .test_trainer import exact_merge, modules, peft_logits
from .trainer import Iteration, TrainedRun, train

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Carried:
    """A trained run, all of whose checkpoints were added to a registry; the last is also exported without one."""

    run: TrainedRun
    registry: CommandLine
    digests: list[str]
    got: list[Path]
    exported: Path

    def adapters(self) -> list[tuple[Iteration, Path]]:
        return [*zip(self.run.iterations, self.got, strict=True), (self.run.last, self.exported)]


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    place = tmp_path_factory.mktemp("carried")
    run = train(place / "run", place / "base")
    registry = CommandLine(place / "home")
    digests = registry.ok("add", *(iteration.checkpoint for iteration in run.iterations)).splitlines()
    got = [Path(registry.ok("get", digest, "--to", place / f"got-{digest[-8:]}")) for digest in digests]
    registry.ok("export", run.last.checkpoint, "--out", place / "exported")
    return Carried(run, registry, digests, got, place / "exported")


def latent_of(adapter: Path) -> dict[str, Tensor]:
    tensors = load_file(adapter / "adapter_model.safetensors")
    return {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()}


def test_every_iteration_has_its_own_digest_which_is_its_files(carried: Carried) -> None:
    assert len(set(carried.digests)) == 3
    for digest, adapter in zip(carried.digests, carried.got, strict=True):
        assert digest == f"sha256:{file_sha256(adapter / 'adapter_model.safetensors')}"
        assert {path.name for path in adapter.iterdir()} == set(ADAPTER_FILES)


def test_export_without_a_registry_gives_the_same_adapter(carried: Carried) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (carried.exported / name).read_bytes() == (carried.got[-1] / name).read_bytes()


def test_the_exported_tensors_are_the_latent_bit_for_bit(carried: Carried) -> None:
    for iteration, adapter in carried.adapters():
        latent = latent_of(adapter)
        assert latent.keys() == iteration.latent.keys()
        for name, tensor in iteration.latent.items():
            assert latent[name].dtype == torch.float32
            assert torch.equal(latent[name].view(torch.int32), tensor.view(torch.int32)), name


def test_merging_the_export_gives_what_was_served_bit_for_bit(carried: Carried) -> None:
    base = load_file(carried.run.base_dir / "model.safetensors")
    for iteration, adapter in carried.adapters():
        config = json.loads((adapter / "adapter_config.json").read_bytes())
        merged = exact_merge(carried.run.base_dir, latent_of(adapter), config["lora_alpha"] / config["r"])
        assert {name.removesuffix(".weight") for name in merged} == set(config["target_modules"])
        served = load_file(iteration.served["engine-0"])
        assert served.keys() == base.keys() > merged.keys()
        for name, tensor in served.items():
            expected = merged[name].to(torch.bfloat16) if name in merged else base[name]
            assert torch.equal(tensor.view(torch.int16), expected.view(torch.int16)), name


def test_peft_loads_it_and_gives_the_trainers_logits_bit_for_bit(carried: Carried) -> None:
    for iteration, adapter in carried.adapters():
        config = PeftConfig.from_pretrained(str(adapter))
        assert (config.r, config.lora_alpha) == (carried.run.r, carried.run.alpha)  # type: ignore[attr-defined]
        assert config.target_modules == set(modules(iteration.latent))  # type: ignore[attr-defined]
        assert torch.equal(peft_logits(carried.run.base_dir, adapter), iteration.logits)


def test_show_names_run_iteration_base_and_checkpoint(carried: Carried) -> None:
    for iteration, digest in zip(carried.run.iterations, carried.digests, strict=True):
        (export,) = json.loads(carried.registry.ok("show", digest, "--json"))["exports"]
        assert (export["run"], export["iteration"]) == ("wired", iteration.number)
        assert export["base"] == str(carried.run.base_dir.resolve())
        assert export["base_revision"] == file_sha256(carried.run.base_dir / "model.safetensors")
        assert export["checkpoint_digest"] == f"sha256:{file_sha256(iteration.checkpoint / 'trainer.pt')}"


def test_a_run_that_starts_from_a_got_adapter_records_it(carried: Carried, tmp_path: Path) -> None:
    parent = carried.got[-1]
    warm = train(tmp_path / "warm", carried.run.base_dir, iterations=1, run_id="warm", warm_start=parent)
    carried.registry.ok("export", warm.last.checkpoint, "--out", tmp_path / "exported")
    manifest = json.loads((tmp_path / "exported/export-manifest.json").read_bytes())
    assert manifest["run"]["warm_start"] == carried.digests[-1].removeprefix("sha256:")
    assert manifest["run"]["id"] == "warm"
    assert (
        manifest["checkpoint"]["sha256"]
        == hashlib.sha256((warm.last.checkpoint / "trainer.pt").read_bytes()).hexdigest()
    )
