"""Public reports of keys that engines do not match, and of what is in a file beside LoRA factors.

The same of aorlta's own checkpoints: Soup#335, prime-rl#1388, miles_diffusion#206, transformers#42491 in
test_lora_keys. Comparing: vllm#34186 with some names, transformers#42491 in served/test_compare and served/test_plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.core.errors import MalformedFile, UnsupportedLora
from registry.core.layout import CONFIG, WEIGHTS
from tests.support.merging import factors, llama, load_model, make_adapter, make_base, save_adapter, tensors
from tests.support.taking import PREFIX, QUIET, Q, V, kept, plain, refused, rekeyed, warnings_of
from tests.support.trees import snapshot
from tests.support.values import raw

RIGHT = sorted(f"{PREFIX}{module}.lora_{factor}.weight" for module in (Q, V) for factor in "AB")


def derived(home: Path, source: Path, **options: Any) -> tuple[Any, Path]:
    """Add an adapter that cannot stay as it is: the manifest says from what and how, and its bits are the source's."""
    before = snapshot(source)
    added = Registry(home).add(source, run="run", **options)
    stored = Path(Registry(home).path(added.digest.hex))
    found = added.manifest["derived"]
    assert found["from"] == added.manifest["checkpoint"]["sha256"] != added.digest.hex
    assert found["changes"]
    assert found["changes"] == warnings_of(added)[: len(found["changes"])]
    assert added.digest.hex == hashlib.sha256((stored / WEIGHTS).read_bytes()).hexdigest()
    assert snapshot(source) == before
    return added, stored


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(lambda key: f"_orig_mod.{key}", "removed '_orig_mod.' from 4 keys", id="Soup#335"),
        pytest.param(
            lambda key: key.replace("layers.0", "layers.0._fsdp_wrapped_module"),
            "removed '_fsdp_wrapped_module.' from 4 keys",
            id="prime-rl#1388 fsdp",
        ),
        pytest.param(
            lambda key: key.replace("model.layers", "_checkpoint_wrapped_module.model.layers"),
            "removed '_checkpoint_wrapped_module.' from 4 keys",
            id="prime-rl#1388 checkpoint",
        ),
        pytest.param(
            lambda key: f"model_state.model.{key}", "removed 'model_state.model.' from 4 keys", id="miles_diffusion#206"
        ),
        pytest.param(lambda key: f"module.{key}", "removed 'module.' from 4 keys", id="ddp"),
        pytest.param(
            lambda key: key.replace(".weight", ".default.weight"), "removed 'default.' from 4 keys", id="adapter name"
        ),
        pytest.param(lambda key: key.removeprefix(PREFIX), "put 'base_model.model.' before 4 keys", id="no prefix"),
        pytest.param(
            lambda key: f"state_dict.{key.removeprefix(PREFIX)}", "removed 'state_dict.' from 4 keys", id="state dict"
        ),
    ],
)
def test_keys_that_engines_would_not_match_are_made_right_in_a_derived_adapter(
    change: Callable[[str], str], says: str, home: Path, tmp_path: Path
) -> None:
    source = rekeyed(tmp_path / "a", change)
    added, stored = derived(home, source)
    assert says in added.manifest["derived"]["changes"]
    before, after = load_file(source / WEIGHTS), load_file(stored / WEIGHTS)
    assert sorted(after) == RIGHT
    assert sorted(map(raw, before.values())) == sorted(map(raw, after.values()))
    assert {key: raw(value) for key, value in after.items()} == {key: raw(before[change(key)]) for key in RIGHT}
    assert (stored / CONFIG).read_bytes() == (source / CONFIG).read_bytes()
    with safe_open(stored / WEIGHTS, "pt") as file:
        assert json.loads(file.metadata()["lora"]) == {"r": 4, "lora_alpha": 8}


def test_a_derived_adapter_taken_again_is_kept_as_it_is(home: Path, tmp_path: Path) -> None:
    added, _ = derived(home, rekeyed(tmp_path / "a", lambda key: f"_orig_mod.{key}"))
    Registry(home).get(added.digest.hex, tmp_path / "got")
    again = Registry(home).add(tmp_path / "got")
    assert (again.digest, again.outcome, again.manifest["derived"]) == (added.digest, "already present", None)


def test_a_derived_adapter_has_the_tensor_digest_of_a_right_one(home: Path, tmp_path: Path) -> None:
    state = factors(Q)
    right = save_adapter(tmp_path / "right", state, **QUIET)
    wrong = save_adapter(tmp_path / "wrong", {f"_orig_mod.{key}": value for key, value in state.items()}, **QUIET)
    digests = {Registry(home).add(each).manifest["adapter"]["tensor_digest"] for each in (right, wrong)}
    assert len(digests) == 1


def test_names_in_the_config_lose_the_same_wrappers_and_all_else_is_kept(home: Path, tmp_path: Path) -> None:
    config = {
        "target_modules": [f"_orig_mod.{Q}", f"_orig_mod.{V}"],
        "rank_pattern": {f"_orig_mod.{Q}": 4},
        "zeta_first": {"b": 1, "a": None},
        "alpha_pattern": {},
    }
    source = rekeyed(tmp_path / "a", lambda key: f"_orig_mod.{key}", **config)
    _, stored = derived(home, source)
    found = json.loads((stored / CONFIG).read_text())
    expected = json.loads((source / CONFIG).read_text()) | {"target_modules": [Q, V], "rank_pattern": {Q: 4}}
    assert found == expected
    assert list(found) == list(expected)


def test_two_keys_that_become_one_are_refused(home: Path, tmp_path: Path) -> None:
    key = f"{PREFIX}{Q}.lora_A.weight"
    source = plain(tmp_path / "a", state={f"_orig_mod.{key}": torch.ones(4, 16)})
    error = refused(home, source, "two keys for one tensor", MalformedFile)
    assert {error.key, error.found} == {key, f"_orig_mod.{key}"}


@pytest.mark.parametrize("root", ["unet", "model.text_encoder", "reference"])
def test_keys_of_an_unknown_root_are_refused(root: str, home: Path, tmp_path: Path) -> None:
    source = rekeyed(tmp_path / "a", lambda key: f"{root}.{key}")
    error = refused(home, source, "keys of an unknown root", UnsupportedLora)
    assert error.found == root


@pytest.mark.parametrize(
    "key",
    [
        f"{PREFIX}{Q}.lora_A.reference.weight",
        f"{PREFIX}{Q}.lora_C.weight",
        f"{PREFIX}{Q}.lora_A.weight.scale",
        f"{PREFIX}{Q}.lora_A_extra",
    ],
)
def test_a_tensor_of_another_adapter_or_kind_is_refused(key: str, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a", state={key: torch.ones(4, 16)})
    assert refused(home, source, "not a tensor of one LoRA adapter", UnsupportedLora).key == key


@pytest.mark.parametrize(
    "key", ["a..lora_A.weight", "a\x1b[31m.lora_A.weight", ".lora_A.weight", "\u202ea.x", "a" * 2000]
)
def test_a_key_that_is_no_name_is_refused_and_shown_escaped(key: str, home: Path, tmp_path: Path) -> None:
    error = refused(
        home, plain(tmp_path / "a", state={key: torch.ones(4, 16)}), "not the name of a tensor", UnsupportedLora
    )
    assert str(error).isprintable()
    assert len(str(error)) < 2000


def test_vllm_34186_an_adapter_of_which_nothing_is_in_the_base_is_refused(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    foreign = plain(tmp_path / "a", "transformer.h.0.attn.c_attn")
    error = refused_by_base(home, foreign, base)
    assert "transformer.h.0.attn.c_attn" in str(error.found)
    assert "among tensors" in str(error.expected)


def refused_by_base(home: Path, source: Path, base: Path) -> UnsupportedLora:
    with pytest.raises(UnsupportedLora, match="none of the adapter's modules is in the base") as caught:
        Registry(home).add(source, base=str(base))
    assert not home.exists()
    return caught.value


def test_vllm_34186_what_the_base_lacks_is_told(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj"])
    state = load_file(source / WEIGHTS) | factors("model.layers.9.self_attn.q_proj")
    save_adapter(source, state, **QUIET)
    added = kept(home, source, base=str(base))
    assert warnings_of(added) == ["the base does not have model.layers.9.self_attn.q_proj"]


def test_transformers_42491_factors_of_single_experts_are_kept(home: Path, tmp_path: Path) -> None:
    modules = [f"model.layers.0.mlp.experts.{number}.down_proj" for number in range(3)]
    added = kept(home, plain(tmp_path / "a", *modules))
    assert added.manifest["adapter"]["modules"] == 3


def test_unsloth_6930_factors_packed_for_a_parameter_are_kept_and_told(home: Path, tmp_path: Path) -> None:
    module = "model.layers.0.mlp.experts"
    state = factors(module, r=16)
    source = plain(tmp_path / "a", state=state, target_parameters=["mlp.experts.gate_up_proj"])
    added = kept(home, source)
    assert added.manifest["lora"]["target_parameters"] == ["mlp.experts.gate_up_proj"]
    assert added.manifest["adapter"]["modules"] == 2
    assert f"not followed when merging here: target_parameters: {module}" in warnings_of(added)


def test_an_adapter_of_packed_factors_alone_is_kept_and_its_tensors_tell_it_apart(home: Path, tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        state = factors("model.layers.0.mlp.experts", r=16)
        source = save_adapter(tmp_path / f"{number}", state, **QUIET, target_parameters=["mlp.experts.gate_up_proj"])
        digests.add(kept(home, source).manifest["adapter"]["tensor_digest"])
    assert len(digests) == 2


def test_vllm_9280_whole_modules_are_kept_told_and_take_the_place_of_the_bases(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj"], modules_to_save=["lm_head"])
    added = kept(home, source)
    assert added.manifest["lora"]["modules_to_save"] == ["lm_head"]
    assert "modules_to_save ['lm_head']: vLLM refuses it; merging replaces the base's weights" in warnings_of(added)
    Registry(home).merge(added.digest.hex, base, tmp_path / "merged")
    head = load_file(source / WEIGHTS)[f"{PREFIX}lm_head.weight"]
    assert torch.equal(tensors(tmp_path / "merged")["lm_head.weight"], head.to(torch.bfloat16))
    assert not torch.equal(load_model(base).lm_head.weight, head.to(torch.bfloat16))


def test_vllm_36501_trained_tokens_are_kept_and_not_merged_in_part(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj"], trainable_token_indices=[1, 2])
    added = kept(home, source)
    assert "not followed when merging here: trainable_token_indices: [1, 2]" in warnings_of(added)
    with pytest.raises(UnsupportedLora, match="trainable_token"):
        Registry(home).merge(added.digest.hex, base, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_peft_2898_an_embedding_of_another_vocabulary_is_told_and_never_merged(home: Path, tmp_path: Path) -> None:
    big = make_base(tmp_path / "big", llama(num_hidden_layers=1, vocab_size=65))
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1, vocab_size=64))
    source = make_adapter(tmp_path / "a", big, target_modules=["q_proj", "embed_tokens"])
    told = warnings_of(kept(home / "unseen", source))
    assert any("embed_tokens.weight of 65 rows is in the file as a whole" in each for each in told)
    assert any("a LoRA on an embedding of 65 rows" in each for each in told)
    added = kept(home / "seen", source, base=str(base))
    assert any("shape [65, 48] in the adapter against [64, 48] in the base" in each for each in warnings_of(added))
    found = load_file(source / WEIGHTS)
    a, b = (found[f"{PREFIX}{Q}.lora_{factor}.weight"] for factor in "AB")
    served = tensors(base)
    served[f"{Q}.weight"] = (served[f"{Q}.weight"].float() + 2 * (b @ a)).bfloat16()
    save_file(served, tmp_path / "served.safetensors")
    compared = Registry(home / "seen").compare(added.digest.hex, base, [tmp_path / "served.safetensors"]).comparison
    assert compared.verdict == "incomplete"
    assert any("[65, 48] in the adapter against [64, 48]" in each.name for each in compared.engines[0].notable)
