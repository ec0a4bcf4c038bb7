"""adapter_config.json: peft and vLLM accept it, and it selects exactly the modules in the file."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftConfig, PeftModel
from peft.tuners.lora import LoraLayer
from transformers import Qwen3_5ForCausalLM

from registry.adapter import adapter_config
from registry.core import jsontext
from registry.core.layout import CONFIG, WEIGHTS
from registry.core.model import Lora, Provenance
from tests.support.runs import MODULES, lora_state
from tests.support.values import file_of, lora_of
from tests.wired.base import CONFIG as TINY

PLAIN: dict[str, Any] = {}
RSLORA = {"r": 4, "alpha": 6, "use_rslora": True}
PATTERNS = {"r": 4, "alpha": 8, "rank_pattern": (("q_proj", 4),), "alpha_pattern": (("layers.1.self_attn.q_proj", 2),)}
SETTINGS = pytest.mark.parametrize("settings", [PLAIN, RSLORA, PATTERNS], ids=["plain", "rslora", "patterns"])


def config_of(lora: Lora, **provenance: Any) -> dict[str, Any]:
    data = adapter_config(lora, Provenance(**provenance))
    config: dict[str, Any] = json.loads(data)
    assert jsontext.pretty(config) == data
    return config


def write_adapter(directory: Path, lora: Lora, **provenance: Any) -> str:
    directory.mkdir()
    (directory / CONFIG).write_bytes(adapter_config(lora, Provenance(**provenance)))
    (directory / WEIGHTS).write_bytes(file_of(lora))
    return str(directory)


def test_every_key_says_what_it_must() -> None:
    assert config_of(lora_of(lora_state(), r=4, alpha=6), base="org/base", base_revision="abc") == {
        "base_model_name_or_path": "org/base",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": 6,
        "alpha_pattern": {},
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": 4,
        "rank_pattern": {},
        "revision": "abc",
        "target_modules": sorted(MODULES),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }


@SETTINGS
def test_peft_reads_the_trainers_settings_from_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    lora = lora_of(lora_state(), **settings)
    loaded = PeftConfig.from_pretrained(write_adapter(tmp_path / "a", lora, base="org/base", base_revision="abc"))
    assert isinstance(loaded, LoraConfig)
    assert (loaded.r, loaded.lora_alpha, loaded.use_rslora) == (4, lora.settings.alpha, lora.settings.use_rslora)
    assert (loaded.rank_pattern, loaded.alpha_pattern) == tuple(
        dict(pattern) for pattern in (lora.settings.rank_pattern, lora.settings.alpha_pattern)
    )
    assert (loaded.lora_dropout, loaded.bias, loaded.use_dora, loaded.modules_to_save) == (0.0, "none", False, None)
    assert (loaded.base_model_name_or_path, loaded.revision) == ("org/base", "abc")
    assert loaded.target_modules == set(MODULES)


@SETTINGS
def test_vllm_accepts_it(settings: dict[str, Any]) -> None:
    """The rules of its `PEFTHelper`: three required fields, no bias, no modules_to_save, no DoRA."""
    config = config_of(lora_of(lora_state(), **settings))
    assert config.keys() >= {"r", "lora_alpha", "target_modules"}
    assert type(config["r"]) is type(config["lora_alpha"]) is int
    assert isinstance(config["target_modules"], list)
    assert all(isinstance(module, str) for module in config["target_modules"])
    assert config["bias"] == "none"
    assert not config["modules_to_save"]
    assert not config["use_dora"]
    scaling = config["lora_alpha"] / (math.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    assert scaling == (3.0 if settings is RSLORA else 2.0)


def test_a_base_that_is_not_known_is_null() -> None:
    """transformers#25215"""
    config = config_of(lora_of(lora_state()))
    assert config["base_model_name_or_path"] is config["revision"] is None


@pytest.mark.parametrize(
    "names",
    [r"model\.layers\.(0\.mlp\.down_proj|3\.mlp\.up_proj)", r"model\.layers\.[013]\..*"],
    ids=["few", "so many that peft shortens the list"],
)
def test_peft_adapts_exactly_the_modules_of_the_file(tmp_path: Path, names: str) -> None:
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(TINY)
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    chosen = {name for name, _ in linears if re.fullmatch(names, name)}
    state = {}
    for name, layer in linears:
        if name not in chosen:
            continue
        rank = 2 if name.endswith("down_proj") else 4
        state[f"{name}.lora_A.weight"] = torch.randn(rank, layer.in_features)
        state[f"{name}.lora_B.weight"] = torch.randn(layer.out_features, rank)
    lora = lora_of(state, rank_pattern=(("down_proj", 2),), alpha_pattern=(("mlp.up_proj", 2),))
    adapted = PeftModel.from_pretrained(model, write_adapter(tmp_path / "a", lora)).base_model.model
    layers = {name: module for name, module in adapted.named_modules() if isinstance(module, LoraLayer)}
    assert layers.keys() == chosen
    for name, layer in layers.items():
        assert torch.equal(layer.lora_A["default"].weight, state[f"{name}.lora_A.weight"])
        assert torch.equal(layer.lora_B["default"].weight, state[f"{name}.lora_B.weight"])
        assert layer.scaling["default"] == (2 if "up_proj" in name else 8) / (2 if "down_proj" in name else 4)
