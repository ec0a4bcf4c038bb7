"""Public reports about adapter_config.json, as PEFT directories.

The same of aorlta's own checkpoints: lerobot#3551, peft#2194, peft#3582, Megatron-Bridge#6031, transformers#25215 in
test_facts. peft#718, sglang#17905 and what else concerns directories: test_readers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.core.errors import MissingAlpha, UnsupportedLora
from registry.core.layout import CONFIG, WEIGHTS
from registry.core.patterns import alpha_of, rank_of
from tests.support.merging import (
    differing,
    edit_config,
    gpt2,
    llama,
    load_adapted,
    logits,
    make_adapter,
    make_base,
    peft_merge,
    read_adapter,
    tensors,
)
from tests.support.taking import PREFIX, Q, V, kept, plain, refused, warnings_of


def test_lerobot_3551_alpha_is_asked_for_and_never_invented(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a", lora_alpha=None)
    error = refused(home, source, "alpha is stated nowhere.*--alpha", MissingAlpha)
    assert error.path == str(source / CONFIG)


def test_lerobot_3551_a_given_alpha_is_bound_to_the_digest(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a", lora_alpha=None, zeta=None)
    one, same, two = (Registry(home).add(source, alpha=alpha) for alpha in (16, 16.0, 32))
    assert one.digest == same.digest != two.digest
    assert one.manifest["alpha_source"] == "option"
    assert one.manifest["derived"]["changes"] == ["lora_alpha 16 was given"]
    stored = Path(Registry(home).path(one.digest.hex))
    assert json.loads((stored / CONFIG).read_text()) == json.loads((source / CONFIG).read_text()) | {"lora_alpha": 16}
    before, after = load_file(source / WEIGHTS), load_file(stored / WEIGHTS)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("alpha", [0, float("nan"), float("inf"), 9])
def test_an_alpha_that_is_none_or_contradicts_the_config_is_refused(alpha: float, home: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLora, match="alpha") as caught:
        Registry(home).add(plain(tmp_path / "a"), alpha=alpha)
    assert caught.value.key == "--alpha"
    assert not home.exists()
    kept(home, tmp_path / "a", alpha=8.0)


@pytest.mark.parametrize("alpha", [0, "8", True, [8], 1e400])
def test_a_config_with_an_alpha_that_is_none_is_refused(alpha: Any, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    text = (source / CONFIG).read_text().replace('"lora_alpha": 8', f'"lora_alpha": {json.dumps(alpha)}')
    (source / CONFIG).write_text(text)
    refused(home, source, "lora_alpha|not valid JSON")


def test_peft_3582_patterns_that_match_nothing_are_told_and_others_resolved_as_peft_does(
    home: Path, tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    patterns = {"^q_proj": 3, "self_attn.v_proj": 5}
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj", "v_proj"], alpha_pattern=patterns)
    told = warnings_of(kept(home, source))
    assert "alpha_pattern '^q_proj' matches no module" in told
    assert not any("v_proj" in each for each in told)
    scaling = {
        name: module.scaling["default"]
        for name, module in load_adapted(base, source).named_modules()
        if hasattr(module, "lora_A")
    }
    settings = read_adapter(source).lora.settings
    assert {name.removeprefix(PREFIX): scale for name, scale in scaling.items()} == {
        module: alpha_of(module, settings) / 4 for module in (Q, V)
    }


def test_peft_2194_a_general_rank_and_a_special_alpha_are_resolved_each_on_its_own(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=2))
    source = make_adapter(
        tmp_path / "a",
        base,
        target_modules=["q_proj"],
        rank_pattern={"q_proj": 8},
        alpha_pattern={"layers.0.self_attn.q_proj": 3},
    )
    kept(home, source)
    settings = read_adapter(source).lora.settings
    found = {module: (rank_of(module, settings), alpha_of(module, settings)) for module in (Q, Q.replace("0", "1"))}
    assert found == {Q: (8, 3), Q.replace("0", "1"): (8, 8)}
    edit_config(source, rank_pattern={"layers.0.self_attn.q_proj": 8})
    refused(home / "other", source, "rank is not the stated one", UnsupportedLora)


def test_megatron_bridge_6031_dora_and_its_magnitudes_come_together_or_not_at_all(home: Path, tmp_path: Path) -> None:
    refused(home, plain(tmp_path / "a", use_dora=True), "magnitude vector", UnsupportedLora)
    magnitudes = {f"{PREFIX}{Q}.lora_magnitude_vector": torch.ones(24)}
    refused(home, plain(tmp_path / "b", state=magnitudes), "use_dora: false", UnsupportedLora)
    kept(home, plain(tmp_path / "c", state=magnitudes, use_dora=True))


def test_lora_biases_and_their_setting_come_together(home: Path, tmp_path: Path) -> None:
    biases = {f"{PREFIX}{Q}.lora_B.bias": torch.ones(24)}
    refused(home, plain(tmp_path / "a", state=biases), "lora_bias: false", UnsupportedLora)
    kept(home, plain(tmp_path / "b", state=biases, lora_bias=True))


def test_vllm_6983_dora_is_kept_told_and_merged_as_peft_merges_it(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1), dtype=torch.float32)
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj"], use_dora=True)
    added = kept(home, source)
    assert added.manifest["lora"]["use_dora"] is True
    assert any(each.startswith("DoRA: vLLM refuses it") for each in warnings_of(added))
    Registry(home).merge(added.digest.hex, base, tmp_path / "merged")
    peft = tensors(peft_merge(tmp_path / "peft", base, source))
    for name, tensor in tensors(tmp_path / "merged").items():
        assert torch.allclose(tensor, peft[name], atol=1e-6), name


def test_peft_2275_unknown_settings_stay_and_only_those_that_say_something_are_told(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a", invented="x", also_new=False, peft_version="0.99.1")
    text = (source / CONFIG).read_text().replace('"invented"', '"silent": null, "invented"')
    (source / CONFIG).write_text(text)
    added = kept(home, source)
    assert warnings_of(added) == ["not followed when merging here: invented: 'x'"]
    assert added.manifest["versions"]["peft"] == "0.99.1"


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (None, ["the base is not known: give it with --base"]),
        ("", ["the base is not known: give it with --base"]),
        ("org/name", []),
        ("/gone", ["the base is a path, which means nothing elsewhere, and is not there any more: /gone"]),
        ("/", ["the base is a path, which means nothing elsewhere: /"]),
    ],
)
def test_transformers_25215_a_base_is_recorded_as_stated(
    base: str | None, says: list[str], home: Path, tmp_path: Path
) -> None:
    added = kept(home, plain(tmp_path / "a", base_model_name_or_path=base))
    assert added.manifest["base"]["name"] == (base or None)
    assert warnings_of(added) == says
    assert Registry(home).show(added.digest.hex).exports[0].base == (base or None)


def test_a_named_base_is_recorded_beside_the_one_that_was_trained_on(home: Path, tmp_path: Path) -> None:
    added = kept(home, plain(tmp_path / "a", base_model_name_or_path="/gone", revision="abc"), base="org/served")
    assert added.manifest["base"] == {"name": "org/served", "revision": None, "trained_on": "/gone"}
    same = kept(home / "same", plain(tmp_path / "b", revision="abc"), base="org/base")
    assert same.manifest["base"] == {"name": "org/base", "revision": None, "trained_on": None}


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "loftq"])
def test_peft_1929_adapters_of_a_residual_base_are_told_and_get_no_verdict(
    start: str, home: Path, tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj"])
    merged = peft_merge(tmp_path / "merged", base, source)
    edit_config(source, init_lora_weights=start)
    added = kept(home, source)
    assert any(f"init_lora_weights: {start} (relative to a changed base)" in each for each in warnings_of(added))
    compared = Registry(home).compare(added.digest.hex, base, [merged])
    assert compared.comparison.verdict == "incomplete"
    edit_config(source, init_lora_weights="gaussian")
    plain_one = kept(home / "other", source)
    assert Registry(home / "other").compare(plain_one.digest.hex, base, [merged]).comparison.verdict == "identical"


def test_unsloth_zoo_810_a_quantised_base_is_told_and_a_verdict_called_approximate(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    trained_on = "unsloth/Some-Model-bnb-4bit"
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj"])
    edit_config(source, base_model_name_or_path=trained_on)
    added = kept(home, source, base="org/Some-Model")
    assert added.manifest["base"] == {"name": "org/Some-Model", "revision": None, "trained_on": trained_on}
    assert any(f"trained on the quantised base {trained_on}" in each for each in warnings_of(added))
    merged = peft_merge(tmp_path / "merged", base, source)
    notes = Registry(home).compare(added.digest.hex, base, [merged]).comparison.notes
    assert any(note.startswith(f"approximate: the adapter was trained on the quantised {trained_on}") for note in notes)


@pytest.mark.parametrize("target", ["c_attn", "attn.c_proj"], ids=["not square", "square"])
@pytest.mark.parametrize("stated", [True, False])
def test_lorax_106_conv1d_weights_are_transposed_as_peft_does(
    target: str, stated: bool, home: Path, tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base", gpt2(n_layer=1), dtype=torch.float32)
    source = make_adapter(tmp_path / "a", base, target_modules=[target])
    edit_config(source, fan_in_fan_out=stated)
    added = kept(home, source)
    Registry(home).merge(added.digest.hex, base, tmp_path / "merged")
    assert differing(tensors(tmp_path / "merged"), tensors(peft_merge(tmp_path / "peft", base, source))) == {}


MODELS = {"llama": llama, "llama with biases": lambda: llama(attention_bias=True), "gpt2": gpt2}


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({"target_modules": ["q_proj", "v_proj"]}, "llama"),
        ({"target_modules": "all-linear", "use_rslora": True}, "llama"),
        ({"target_modules": r".*\.(q|v)_proj"}, "llama"),
        ({"target_modules": ["q_proj"], "use_dora": True}, "llama"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]}, "llama"),
        ({"target_modules": ["q_proj"], "bias": "all"}, "llama with biases"),
        ({"target_modules": ["q_proj"], "bias": "lora_only"}, "llama with biases"),
        ({"target_modules": ["q_proj"], "lora_bias": True}, "llama with biases"),
        (
            {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}},
            "llama",
        ),
        ({"target_modules": ["q_proj", "embed_tokens", "lm_head"]}, "llama"),
        ({"target_modules": ["q_proj"], "trainable_token_indices": [3, 5]}, "llama"),
        ({"target_modules": ["c_attn", "c_proj"]}, "gpt2"),
    ],
    ids=str,
)
def test_what_peft_saved_goes_in_and_out_byte_for_byte_and_peft_says_the_same_with_it(
    settings: dict[str, Any], model: str, home: Path, tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base", MODELS[model](), dtype=torch.float32)
    source = make_adapter(tmp_path / "a", base, **settings)
    added = kept(home, source)
    Registry(home).get(added.digest.hex, tmp_path / "got")
    for name in (WEIGHTS, CONFIG):
        assert (tmp_path / "got" / name).read_bytes() == (source / name).read_bytes()
    assert torch.equal(logits(load_adapted(base, tmp_path / "got")), logits(load_adapted(base, source)))


@pytest.mark.parametrize(
    ("pattern", "ok"),
    [
        (r".*\.(q|v)_proj", True),
        (r"(?:model\.)?.*q_proj", True),
        (r"(.+)+_proj|(a+)+b", True),  # matched here in bounded time
        ("(", False),
        (r"(?=.*)q_proj", False),
    ],
)
def test_a_target_of_a_kind_that_is_not_matched_here_is_refused(
    pattern: str, ok: bool, home: Path, tmp_path: Path
) -> None:
    source = plain(tmp_path / "a", target_modules=pattern)
    if ok:
        kept(home, source)
    else:
        refused(home, source, "not a regular expression of a kind that is matched here")


def test_the_config_may_not_contradict_what_the_file_itself_states(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    metadata = {"lora": json.dumps({"r": 4, "lora_alpha": 16})}
    save_file(load_file(source / WEIGHTS), source / WEIGHTS, metadata=metadata)
    error = refused(home, source, "contradicts what the file itself states")
    assert (error.key, error.found, error.expected) == ("lora_alpha", '{"lora_alpha":8}', '{"lora_alpha":16}')
    edit_config(source, lora_alpha=16)
    kept(home, source)


@pytest.mark.parametrize("text", ["", "mine", "[1]", '{"rank": 3}', "\u202e"])
def test_an_entry_of_the_same_name_by_somebody_else_means_nothing(text: str, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    save_file(load_file(source / WEIGHTS), source / WEIGHTS, metadata={"lora": text})
    kept(home, source)
