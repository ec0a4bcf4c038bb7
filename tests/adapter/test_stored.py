"""An adapter is read as peft saves it; what cannot be followed is named, what contradicts itself is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry.core.contents import AdapterContents
from registry.core.errors import MalformedFile, MissingAlpha, RegistryError, UnsupportedLora
from registry.core.layout import CONFIG, WEIGHTS
from registry.core.patterns import scale_of
from tests.support.merging import edit_config, factors, gpt2, llama, make_adapter, make_base, read_adapter, save_adapter
from tests.support.values import raw

Q = "model.layers.0.self_attn.q_proj"
HEAD, EMBEDDING = "lm_head", "model.embed_tokens"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a PEFT adapter on a tiny llama, by peft."""
    root = tmp_path_factory.mktemp("decode")
    base = make_base(root / "base", llama(num_hidden_layers=1, attention_bias=True))

    def made(**settings: Any) -> Path:
        return make_adapter(
            root / f"adapter-{len(os.listdir(root))}", base, **{"target_modules": ["q_proj"], **settings}
        )

    return made


def everything(contents: AdapterContents) -> list[bytes]:
    pairs = [*contents.lora.pairs, *contents.embeddings]
    groups = (contents.magnitudes, contents.lora_biases, contents.replaced, contents.biases)
    tensors = [each for pair in pairs for each in (pair.a, pair.b)] + [
        each for group in groups for each in group.values()
    ]
    return sorted(bytes(tensor.contiguous()) for tensor in tensors)


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        {"use_dora": True},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"lora_bias": True},
        {"modules_to_save": ["lm_head", "norm"]},
        {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
    ],
    ids=str,
)
def test_every_tensor_that_peft_saves_has_a_place_bit_for_bit(adapter: Callable[..., Path], settings: Any) -> None:
    directory = adapter(**settings)
    contents = read_adapter(directory)
    assert everything(contents) == sorted(raw(tensor) for tensor in load_file(directory / WEIGHTS).values())
    assert contents.unknown == ()
    assert contents.unsupported == ()


def test_tensors_are_where_they_belong(adapter: Callable[..., Path]) -> None:
    contents = read_adapter(adapter(target_modules=["q_proj", "embed_tokens"], use_dora=True, modules_to_save=["norm"]))
    assert [pair.module for pair in contents.lora.pairs] == [Q]
    assert [(pair.module, pair.a.shape, pair.b.shape) for pair in contents.embeddings] == [
        (EMBEDDING, (4, 64), (48, 4))
    ]
    assert sorted(contents.magnitudes) == [EMBEDDING, Q]
    assert "model.norm.weight" in contents.replaced
    assert f"{EMBEDDING}.weight" in contents.replaced  # peft saves a targeted embedding's own weight too


def test_biases_replace_and_lora_biases_are_added(adapter: Callable[..., Path]) -> None:
    assert list(read_adapter(adapter(bias="lora_only")).biases) == [f"{Q}.bias"]
    assert len(read_adapter(adapter(bias="all")).biases) == 4
    assert list(read_adapter(adapter(lora_bias=True)).lora_biases) == [Q]


def test_tensors_outlive_the_open_file_and_cannot_be_written(tmp_path: Path) -> None:
    state = factors(Q)
    contents = read_adapter(save_adapter(tmp_path / "a", state))
    view = contents.lora.pairs[0].a.contiguous()
    assert view.readonly
    assert bytes(view) == raw(state[f"base_model.model.{Q}.lora_A.weight"])


def test_default_names_and_missing_prefixes_are_understood(tmp_path: Path) -> None:
    a, b = factors(Q).values()
    named = save_adapter(
        tmp_path / "a", {f"{Q}.lora_A.default.weight": a, f"base_model.model.{Q}.lora_B.default.weight": b}
    )
    assert [pair.module for pair in read_adapter(named).lora.pairs] == [Q]


def test_scales_and_ranks_are_those_peft_resolves(adapter: Callable[..., Path]) -> None:
    directory = adapter(
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        rank_pattern={"q_proj": 8, r".*\.0\.self_attn\.k_proj": 2, "self_attn.k_proj": 3},
        alpha_pattern={"^model.*v_proj": 3, "o_proj": 5},
        use_rslora=True,
    )
    contents = read_adapter(directory)
    settings = contents.lora.settings
    found = {pair.module[-6:]: (pair.rank, scale_of(pair.module, settings, pair.rank)) for pair in contents.lora.pairs}
    assert found == {"q_proj": (8, 8 / 8**0.5), "k_proj": (2, 8 / 2**0.5), "v_proj": (4, 3 / 2), "o_proj": (4, 5 / 2)}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("target_parameters", ["mlp.experts.gate_up_proj"]),
        ("layer_replication", [[0, 1], [0, 1]]),
        ("trainable_token_indices", [1, 2]),
        ("alora_invocation_tokens", [3]),
        ("arrow_config", {"top_k": 3}),
        ("use_qalora", True),
        ("use_bdlora", {"nblocks": 2}),
        ("megatron_config", {"x": 1}),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "OLoRA"),
        ("invented_in_2030", 1),
    ],
)
def test_what_merging_cannot_follow_is_named(tmp_path: Path, setting: str, value: Any) -> None:
    state = factors(Q) | factors("model.layers.0.mlp.experts")
    contents = read_adapter(save_adapter(tmp_path / "a", state, **{setting: value}))
    assert any(setting in name for name in contents.unsupported)


@pytest.mark.parametrize("value", [None, False, {}, [], 0])
def test_a_setting_that_is_off_is_no_obstacle(tmp_path: Path, value: Any) -> None:
    directory = save_adapter(tmp_path / "a", factors(Q), invented_in_2030=value)
    assert read_adapter(directory).unsupported == ()


def test_factors_packed_for_a_parameter_are_named_by_module_and_not_taken_for_a_layers(tmp_path: Path) -> None:
    experts = factors("model.layers.0.mlp.experts.base_layer", r=32) | factors("model.layers.0.mlp.experts", r=32)
    directory = save_adapter(tmp_path / "a", factors(Q) | experts, target_parameters=["mlp.experts.gate_up_proj"])
    contents = read_adapter(directory)
    assert [pair.module for pair in contents.lora.pairs] == [Q]
    assert "target_parameters: model.layers.0.mlp.experts" in contents.unsupported
    assert contents.modules == ("model.layers.0.mlp.experts", "model.layers.0.mlp.experts.base_layer", Q)


@pytest.mark.parametrize("targets", [["k_proj"], r".*\.k_proj", ["proj"]])
def test_modules_that_the_config_does_not_select_are_named(tmp_path: Path, targets: Any) -> None:
    contents = read_adapter(save_adapter(tmp_path / "a", factors(Q), target_modules=targets))
    assert contents.unsupported == (f"target_modules does not select {Q}",)


@pytest.mark.parametrize("targets", [["q_proj"], [Q], r".*\.q_proj", "all-linear", None])
def test_modules_that_the_config_selects_are_not(tmp_path: Path, targets: Any) -> None:
    assert read_adapter(save_adapter(tmp_path / "a", factors(Q), target_modules=targets)).unsupported == ()


def test_keys_that_mean_nothing_here_are_listed(tmp_path: Path) -> None:
    key = "base_model.model.model.layers.0.mlp.router.bias"
    assert read_adapter(save_adapter(tmp_path / "a", factors(Q) | {key: torch.zeros(3)})).unknown == (key,)


def broken(**changes: Any) -> dict[str, torch.Tensor]:
    """Sound factors, with tensors put in under the module's key; None takes one out."""
    state = {**factors(Q), **{f"base_model.model.{Q}.{key}": value for key, value in changes.items()}}
    return {key: value for key, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("state", "config", "kind", "says"),
    [
        (broken(), {"lora_alpha": None}, MissingAlpha, "lora_alpha"),
        (broken(), {"lora_alpha": 0}, UnsupportedLora, "lora_alpha"),
        (broken(), {"lora_alpha": "8"}, UnsupportedLora, "lora_alpha"),
        (broken(), {"alpha_pattern": {"q_proj": 0}}, UnsupportedLora, "q_proj"),
        (broken(), {"r": None}, UnsupportedLora, "r: "),
        (broken(), {"r": 8}, UnsupportedLora, "rank"),
        (broken(), {"rank_pattern": {"q_proj": 2}}, UnsupportedLora, "rank"),
        (broken(), {"rank_pattern": {"(": 2}}, UnsupportedLora, "rank_pattern"),
        (broken(), {"peft_type": "LOHA"}, UnsupportedLora, "peft_type"),
        (broken(), {"target_modules": "("}, MalformedFile, "target_modules"),
        (broken(), {"modules_to_save": "lm_head"}, MalformedFile, "modules_to_save"),
        (broken(), {"use_dora": True}, UnsupportedLora, "magnitude"),
        (broken(lora_magnitude_vector=torch.ones(24)), {}, UnsupportedLora, "use_dora: false"),
        (broken(lora_magnitude_vector=torch.ones(16)), {"use_dora": True}, UnsupportedLora, "magnitude"),
        (broken(**{"lora_B.weight": None}), {}, UnsupportedLora, "also lora_B"),
        (broken(**{"lora_A.weight": None}), {}, UnsupportedLora, "also lora_A"),
        (broken(**{"lora_A.weight": torch.zeros(0, 16)}), {}, UnsupportedLora, "shard"),
        (broken(**{"lora_B.weight": torch.zeros(96)}), {}, UnsupportedLora, "shard"),
        (broken(**{"lora_A.weight": torch.zeros(4, 16, 1, 1)}), {}, UnsupportedLora, "convolution"),
        (broken(**{"lora_A.weight": torch.zeros(4, 16, dtype=torch.int8)}), {}, UnsupportedLora, "floating-point"),
        (broken(**{"lora_A.default.weight": torch.zeros(4, 16)}), {}, MalformedFile, "two keys"),
        ({"base_model.model.lm_head.weight": torch.zeros(4, 4)}, {}, UnsupportedLora, "no LoRA tensors"),
    ],
    ids=lambda value: None if isinstance(value, (dict, type)) else value,
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, state: dict[str, torch.Tensor], config: dict[str, Any], kind: type[RegistryError], says: str
) -> None:
    directory = save_adapter(tmp_path / "a", state, **config)
    with pytest.raises(kind, match=says):
        read_adapter(directory)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": NaN}', '{"r": 1, "r": 2}'])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    directory = save_adapter(tmp_path / "a", factors(Q))
    (directory / CONFIG).write_text(text)
    with pytest.raises(MalformedFile, match=CONFIG):
        read_adapter(directory)


def test_a_tied_head_that_peft_adds_unasked_counts_as_selected(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1, tie_word_embeddings=True))
    directory = make_adapter(tmp_path / "a", base, target_modules=["embed_tokens"], ensure_weight_tying=True)
    contents = read_adapter(directory)
    assert [pair.module for pair in contents.lora.pairs] == [HEAD]
    assert contents.unsupported == ()


def test_conv1d_factors_are_read_as_they_are(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", gpt2(n_layer=1))
    directory = make_adapter(tmp_path / "a", base, target_modules=["c_attn"])
    assert json.loads((directory / CONFIG).read_text())["fan_in_fan_out"] is True
    edit_config(directory, fan_in_fan_out=False)
    (pair,) = read_adapter(directory).lora.pairs
    assert (pair.a.shape, pair.b.shape) == ((4, 48), (144, 4))
