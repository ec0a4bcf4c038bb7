"""A plan says, before any tensor is read, what happens to each, and names whatever it cannot do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from registry.core.errors import MalformedFile, UnsupportedLora
from registry.served.changes import BiasChange, DoraChange, LoraChange, ReplaceChange
from registry.served.plan import Plan, plan
from registry.served.tied import Tie, untied
from registry.served.weights import open_weights
from tests.support.merging import factors, gpt2, llama, make_adapter, make_base, read_adapter, save_adapter

Q = "model.layers.0.self_attn.q_proj"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def planned(base: Path, adapter: Path) -> Plan:
    with open_weights(str(base)) as weights:
        return plan(read_adapter(adapter), weights)


def small_base(directory: Path, config: dict[str, Any] | None = None, **shapes: tuple[int, ...]) -> Path:
    """A base with tensors of these shapes; `__` in a name stands for a dot."""
    directory.mkdir()
    state = {name.replace("__", "."): torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(state, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = llama(num_hidden_layers=1, attention_bias=True)
    return make_base(tmp_path_factory.mktemp("plan") / "base", config)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = llama(num_hidden_layers=1, tie_word_embeddings=True)
    return make_base(tmp_path_factory.mktemp("plan") / "tied", config)


def test_a_linear_layer_gets_its_own_scale(base: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "a", base, target_modules=["q_proj", "v_proj"], alpha_pattern={"v_proj": 3})
    found = planned(base, adapter)
    scales = {name: change.scale for name, change in found.changes.items() if isinstance(change, LoraChange)}
    assert scales == {f"{Q}.weight": 2.0, "model.layers.0.self_attn.v_proj.weight": 0.75}
    assert (found.unmatched, found.unsupported, found.added, found.untied) == ((), (), {}, None)


def test_dora_embeddings_and_biases_are_told_apart(base: Path, tmp_path: Path) -> None:
    dora = planned(base, make_adapter(tmp_path / "a", base, target_modules=["q_proj", "embed_tokens"], use_dora=True))
    assert isinstance(dora.changes[f"{Q}.weight"], DoraChange)
    match dora.changes[EMBEDDING]:
        case ReplaceChange(then=DoraChange(transposed=True)):  # peft saves the embedding it was trained on too
            pass
        case other:
            pytest.fail(f"{other}")
    biases = planned(base, make_adapter(tmp_path / "b", base, target_modules=["q_proj"], bias="lora_only"))
    assert isinstance(biases.changes[f"{Q}.bias"], ReplaceChange)
    added = planned(base, make_adapter(tmp_path / "c", base, target_modules=["q_proj"], lora_bias=True))
    assert isinstance(added.changes[f"{Q}.bias"], BiasChange)


@pytest.mark.parametrize("stated", [True, False])
def test_the_layer_decides_the_orientation_as_in_peft(tmp_path: Path, stated: bool) -> None:
    base = make_base(tmp_path / "base", gpt2(n_layer=1))
    adapter = make_adapter(tmp_path / "a", base, target_modules=["c_attn", "c_proj"])
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"fan_in_fan_out": stated}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    changes = planned(base, adapter).changes
    assert len(changes) == 3  # c_attn [48, 144], attn.c_proj [48, 48] which is square, mlp.c_proj [192, 48]
    assert all(isinstance(change, LoraChange) and change.transposed for change in changes.values())


@pytest.mark.parametrize("stated", [True, False])
def test_a_square_weight_of_an_unknown_model_goes_by_the_config(tmp_path: Path, stated: bool) -> None:
    base = small_base(tmp_path / "base", m__weight=(16, 16))
    adapter = save_adapter(tmp_path / "a", factors("m", columns=16, rows=16), fan_in_fan_out=stated)
    match planned(base, adapter).changes["m.weight"]:
        case LoraChange(transposed=transposed):
            assert transposed is stated


def test_a_linear_layer_is_not_transposed_whatever_the_config_says(tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", m__weight=(24, 16))
    match planned(base, save_adapter(tmp_path / "a", factors("m"), fan_in_fan_out=True)).changes["m.weight"]:
        case LoraChange(transposed=transposed):
            assert not transposed


def test_shapes_that_do_not_fit_are_named_with_both(tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", m__weight=(24, 17), n__weight=(24, 16))
    found = planned(base, save_adapter(tmp_path / "a", factors("m") | factors("n")))
    assert found.unsupported == ("m.weight: shape [24, 17] in the base against [24, 16] (out, in) in the adapter",)
    assert list(found.changes) == ["n.weight"]


def test_a_vocabulary_of_another_size_is_named(tmp_path: Path, base: Path) -> None:
    state = factors(Q, columns=48, rows=48) | {"base_model.model.lm_head.weight": torch.zeros(65, 48)}
    found = planned(base, save_adapter(tmp_path / "a", state, modules_to_save=["lm_head"]))
    assert found.unsupported == ("lm_head.weight: shape [65, 48] in the adapter against [64, 48] in the base",)


@pytest.mark.parametrize("fused", ["gate_up_proj", "up_proj", "down_proj__weight"])
@pytest.mark.parametrize("others", [[], ["m"]])
def test_single_experts_of_a_fused_base_are_named_as_not_supported(
    tmp_path: Path, fused: str, others: list[str]
) -> None:
    """transformers#42491"""
    shapes = {f"model__language_model__mlp__experts__{fused}": (4, 24, 16), "m__weight": (24, 16)}
    experts = [f"model.mlp.experts.{number}.up_proj" for number in (0, 3)]
    state = {key: each for module in (*experts, *others) for key, each in factors(module).items()}
    found = planned(small_base(tmp_path / "base", **shapes), save_adapter(tmp_path / "a", state))
    reason = "a LoRA on one expert, and the base holds all in one tensor"
    assert found.unsupported == tuple(f"{module}: {reason}" for module in experts)
    assert (found.unmatched, list(found.changes)) == ((), [f"{module}.weight" for module in others])


def test_experts_that_the_base_has_one_by_one_are_merged_like_any_other(tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", mlp__experts__0__up_proj__weight=(24, 16), conv__weight=(4, 1, 3))
    found = planned(
        base, save_adapter(tmp_path / "a", factors("mlp.experts.0.up_proj") | factors("mlp.experts.9.up_proj"))
    )
    assert list(found.changes) == ["mlp.experts.0.up_proj.weight"]
    assert (found.unmatched, found.unsupported) == (("mlp.experts.9.up_proj",), ())


def test_quantised_weights_are_named(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    save_file({"m.weight": torch.zeros(24, 16, dtype=torch.int8)}, tmp_path / "base/model.safetensors")
    found = planned(tmp_path / "base", save_adapter(tmp_path / "a", factors("m")))
    assert found.unsupported == ("m.weight: a LoRA on int8 weights (quantised?)",)
    assert not found.changes


def test_modules_and_tensors_that_the_base_has_not_are_listed(tmp_path: Path, base: Path) -> None:
    state = factors(Q, columns=48, rows=48) | factors("model.layers.7.self_attn.q_proj", columns=48, rows=48)
    state |= {"base_model.model.score.weight": torch.zeros(2, 48), "base_model.model.score.other": torch.zeros(2)}
    found = planned(base, save_adapter(tmp_path / "a", state, modules_to_save=["score"]))
    assert found.unmatched == ("model.layers.7.self_attn.q_proj", "score.other", "score.weight")


def test_unknown_keys_and_unsupported_settings_are_carried_on(tmp_path: Path, base: Path) -> None:
    state = factors(Q, columns=48, rows=48) | {"base_model.model.stray.thing": torch.zeros(1)}
    found = planned(base, save_adapter(tmp_path / "a", state, trainable_token_indices=[1]))
    assert found.unsupported == ("trainable_token_indices: [1]", "tensor base_model.model.stray.thing")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(UnsupportedLora, match="none of the adapter's modules"):
        planned(base, save_adapter(tmp_path / "a", factors("transformer.h.0.attn.c_attn")))


def test_a_renaming_holds_for_saved_tensors_too(tmp_path: Path) -> None:
    base = small_base(
        tmp_path / "base", model__language_model__m__weight=(24, 16), model__language_model__n__weight=(3,)
    )
    state = factors("model.m") | {"base_model.model.model.n.weight": torch.zeros(3)}
    found = planned(base, save_adapter(tmp_path / "a", state, modules_to_save=["n"]))
    assert sorted(found.changes) == ["model.language_model.m.weight", "model.language_model.n.weight"]
    assert str(found.prefix) == "model. -> model.language_model."


class TestTied:
    """One matrix under two names: changing it under one leaves the other as it was."""

    def test_is_no_matter_where_neither_is_touched(self, tied: Path, tmp_path: Path) -> None:
        found = planned(tied, make_adapter(tmp_path / "a", tied, target_modules=["q_proj"]))
        assert (found.untied, found.added) == (None, {})

    def test_head_that_is_only_an_embedding_in_the_file_becomes_a_tensor_of_its_own(
        self, tied: Path, tmp_path: Path
    ) -> None:
        found = planned(tied, make_adapter(tmp_path / "a", tied, target_modules=["q_proj", "lm_head"]))
        assert found.untied == Tie(EMBEDDING, HEAD)
        assert found.added == {HEAD: EMBEDDING}
        assert found.source(HEAD) == EMBEDDING
        assert HEAD in found.changes
        assert EMBEDDING not in found.changes

    def test_embedding_changes_and_its_head_stays(self, tied: Path, tmp_path: Path) -> None:
        found = planned(tied, make_adapter(tmp_path / "a", tied, target_modules=["q_proj", "embed_tokens"]))
        assert found.untied == Tie(EMBEDDING, HEAD)
        assert found.added == {HEAD: EMBEDDING}
        assert HEAD not in found.changes

    def test_head_that_is_in_the_file_is_not_added(self, tmp_path: Path) -> None:
        shapes = {"model__embed_tokens__weight": (24, 16), "lm_head__weight": (24, 16)}
        base = small_base(tmp_path / "base", {"text_config": {"tie_word_embeddings": True}}, **shapes)
        found = planned(base, save_adapter(tmp_path / "a", factors("lm_head")))
        assert (found.untied, found.added) == (Tie(EMBEDDING, HEAD), {})

    @pytest.mark.parametrize("config", [None, {}, {"tie_word_embeddings": False}])
    def test_a_missing_head_is_only_tied_where_the_config_says_so(self, tmp_path: Path, config: Any) -> None:
        shapes = {"model__embed_tokens__weight": (24, 16), "m__weight": (24, 16)}
        base = small_base(tmp_path / "base", config, **shapes)
        found = planned(base, save_adapter(tmp_path / "a", factors("lm_head") | factors("m")))
        assert found.unmatched == ("lm_head",)

    @pytest.mark.parametrize("changed", ["lm_head", "model.embed_tokens"])
    @pytest.mark.parametrize("config", [{"model_type": "old"}, {"text_config": {"vocab_size": 24}}])
    def test_a_missing_head_is_tied_where_the_config_does_not_say(
        self, tmp_path: Path, config: Any, changed: str
    ) -> None:
        base = small_base(tmp_path / "base", config, model__embed_tokens__weight=(24, 16))
        found = planned(base, save_adapter(tmp_path / "a", factors(changed)))
        assert (found.untied, found.added, found.unmatched) == (Tie(EMBEDDING, HEAD), {HEAD: EMBEDDING}, ())
        apart = untied(config)
        assert apart == {**config, **apart, "tie_word_embeddings": False}
        assert apart.get("text_config", apart)["tie_word_embeddings"] is False

    def test_a_stored_head_is_not_tied_where_the_config_does_not_say(self, tmp_path: Path) -> None:
        shapes = {"model__embed_tokens__weight": (24, 16), "lm_head__weight": (24, 16)}
        base = small_base(tmp_path / "base", {"model_type": "old"}, **shapes)
        assert planned(base, save_adapter(tmp_path / "a", factors("lm_head"))).untied is None


@pytest.mark.parametrize("kind", [[], {}, None, 3])
def test_a_model_type_that_is_no_text_says_nothing(tmp_path: Path, kind: Any) -> None:
    base = small_base(tmp_path / "base", {"model_type": kind}, m__weight=(16, 16))
    match planned(base, save_adapter(tmp_path / "a", factors("m", rows=16))).changes["m.weight"]:
        case LoraChange(transposed=transposed):
            assert not transposed


def test_a_damaged_config_of_the_base_is_refused(tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", m__weight=(24, 16))
    (base / "config.json").write_text("[]")
    with pytest.raises(MalformedFile, match=r"config\.json"):
        planned(base, save_adapter(tmp_path / "a", factors("m")))
