"""export-manifest.json states what was exported, from what, and by what."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.adapter import export_manifest, same_export
from registry.checkpoints import read_checkpoint
from registry.core import jsontext
from registry.core.model import Checkpoint
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.values import digest_of, read

WEIGHTS, CONFIG, TENSORS = map(digest_of, ("weights", "config", "tensors"))
PARENT = digest_of("parent").hex


def manifest_of(checkpoint: Checkpoint) -> dict[str, Any]:
    return export_manifest(
        checkpoint,
        weights=(WEIGHTS, 1000),
        config=(CONFIG, 200),
        tensors=TENSORS,
        versions={"aorlta-registry": "0", "python": "3"},
        exported_at="2026-01-01T00:00:00.000000Z",
    )


@pytest.fixture
def manifest(tmp_path: Path) -> dict[str, Any]:
    return manifest_of(read(tmp_path / "run"))


def test_it_states_everything_that_is_known(tmp_path: Path) -> None:
    state = {f"module.{name}": value for name, value in lora_state().items()}
    key = f"module.{MODULES[1]}.lora_B.weight"
    state[key] = torch.zeros_like(state[key])
    state[f"module.{MODULES[0]}.lora_B.weight"][0, 0] = float("inf")
    config = {
        "run_id": "r1",
        "model": {"base": "org/base", "revision": "abc", "adapter": f"sha256:{PARENT}"},
        "sync": {"stochastic_rounding": True},
        "resume": {"checkpoint": PARENT.upper()},
    }
    checkpoint = read(
        tmp_path / "run", contents(state, use_rslora=True), iteration=4, config=config, allow_nonfinite=True
    )
    data = Path(checkpoint.path).read_bytes()
    listing = Path(checkpoint.path).with_name("manifest.json").read_bytes()
    assert manifest_of(checkpoint) == {
        "format": 1,
        "pass": True,
        "checkpoint": {
            "path": str(tmp_path / "run/ckpt/iter-4/trainer.pt"),
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "reader": "aorlta",
            "manifest": {"name": "manifest.json", "sha256": hashlib.sha256(listing).hexdigest()},
        },
        "adapter": {
            "adapter_model.safetensors": {"sha256": WEIGHTS.hex, "bytes": 1000},
            "adapter_config.json": {"sha256": CONFIG.hex, "bytes": 200},
            "tensor_digest": TENSORS.hex,
            "modules": 3,
            "zero_lora_b": 1,
            "nonfinite": 1,
        },
        "derived": None,
        "lora": {"r": 4, "lora_alpha": 8, "use_rslora": True},
        "alpha_source": "checkpoint",
        "run": {
            "id": "r1",
            "iteration": 3,
            "config_sha256": hashlib.sha256((tmp_path / "run/config.json").read_bytes()).hexdigest(),
            "warm_start": PARENT,
            "warm_start_source": "config",
            "resumed_from": PARENT,
            "stochastic_rounding": True,
        },
        "base": {"name": "org/base", "revision": "abc", "trained_on": None},
        "stripped_prefixes": ["module."],
        "same_tensor": [],
        "warnings": list(checkpoint.warnings),
        "versions": {"aorlta-registry": "0", "python": "3"},
        "exported_at": "2026-01-01T00:00:00.000000Z",
    }
    assert len(checkpoint.warnings) == 2  # the infinity, and the directory's other iteration


def test_what_is_not_known_is_null_and_never_invented(tmp_path: Path) -> None:
    manifest = manifest_of(read(tmp_path / "run", contents(lora_state(), iteration=None), manifest=False, config={}))
    assert manifest["checkpoint"]["manifest"] is None
    assert manifest["base"] == {"name": None, "revision": None, "trained_on": None}
    known = {"iteration": 3, "config_sha256": hashlib.sha256(b"{}").hexdigest()}
    assert {key: value for key, value in manifest["run"].items() if value is not None} == known


def test_a_path_that_is_not_utf_8_can_still_be_written(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run")
    renamed = (tmp_path / "run").rename(tmp_path / "run-\udcff")
    checkpoint = read_checkpoint(str(renamed / "ckpt" / "iter-3"))
    written = jsontext.parse(jsontext.pretty(manifest_of(checkpoint)), "manifest")
    assert written["checkpoint"]["path"].endswith("/run-\\udcff/ckpt/iter-3/trainer.pt")


def set_in(*keys: str, value: Any = "x") -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        assert manifest[keys[-1]] != value
        manifest[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_in("exported_at"),
        set_in("versions", "python"),
        set_in("warnings", value=["x"]),
        set_in("checkpoint", "path"),
        set_in("checkpoint", "manifest", value=None),
        set_in("run", "config_sha256"),
        set_in("run", "warm_start_source"),
    ],
)
def test_when_where_and_by_which_version_do_not_make_another_export(
    manifest: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    other = copy.deepcopy(manifest)
    change(other)
    assert same_export(manifest, other)


def test_a_manifest_from_before_adapters_were_taken_states_the_same(manifest: dict[str, Any]) -> None:
    older = copy.deepcopy(manifest)
    del older["derived"], older["base"]["trained_on"]
    assert same_export(manifest, older)
    assert same_export(older, manifest)


@pytest.mark.parametrize(
    "change",
    [
        set_in("derived"),
        set_in("base", "trained_on"),
        set_in("checkpoint", "sha256"),
        set_in("adapter", "tensor_digest"),
        set_in("adapter", "adapter_config.json", "sha256"),
        set_in("lora", "lora_alpha"),
        set_in("alpha_source"),
        set_in("run", "id"),
        set_in("run", "iteration"),
        set_in("run", "warm_start"),
        set_in("run", "resumed_from"),
        set_in("run", "stochastic_rounding"),
        set_in("base", "name"),
        set_in("base", "revision"),
        set_in("stripped_prefixes"),
    ],
)
def test_any_other_fact_makes_another_export(
    manifest: dict[str, Any], change: Callable[[dict[str, Any]], None]
) -> None:
    other = copy.deepcopy(manifest)
    change(other)
    assert not same_export(manifest, other)
