"""Adapter modules find the base's weights exactly or through one renaming, and never through a guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.errors import UnsupportedLora
from registry.served.names import EXACT, RENAMINGS, Renaming, bare, match_modules

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "lm_head")
EXACTLY = {f"{module}.weight" for module in MODULES}


def test_names_that_are_the_bases_stay_as_they_are() -> None:
    matched = match_modules(MODULES, EXACTLY | {"model.norm.weight"})
    assert matched.prefix == EXACT
    assert str(matched.prefix) == "exact"
    assert matched.names == {module: f"{module}.weight" for module in MODULES}
    assert matched.unmatched == ()


@pytest.mark.parametrize(
    ("layers", "head", "renaming"),
    [
        ("model.language_model.", "", Renaming("model.", "model.language_model.")),
        ("language_model.model.", "language_model.", Renaming("", "language_model.")),
        ("base_model.model.model.", "base_model.model.", Renaming("", "base_model.model.")),
        ("", "", Renaming("model.", "")),
    ],
)
def test_one_renaming_fits_all_modules(layers: str, head: str, renaming: Renaming) -> None:
    expected = {"model.0.q": f"{layers}0.q", "model.1.up": f"{layers}1.up", "lm_head": f"{head}lm_head"}
    matched = match_modules(list(expected), [f"{name}.weight" for name in expected.values()])
    assert matched.names == {module: f"{name}.weight" for module, name in expected.items()}
    assert {module: matched.prefix(module) for module in expected} == expected
    assert matched.prefix == renaming


def test_an_adapter_of_the_larger_model_fits_the_text_model() -> None:
    matched = match_modules(["model.language_model.layers.0.q"], ["model.layers.0.q.weight", "lm_head.weight"])
    assert matched.names == {"model.language_model.layers.0.q": "model.layers.0.q.weight"}


def test_names_as_they_are_win_over_a_renaming_that_finds_no_more() -> None:
    tensors = {"model.layers.0.q.weight", "model.language_model.layers.0.q.weight"}
    assert match_modules(["model.layers.0.q"], tensors).prefix == EXACT


def test_the_renaming_that_finds_most_wins_and_the_rest_is_listed() -> None:
    tensors = ["model.language_model.layers.0.q.weight", "model.language_model.layers.1.q.weight"]
    matched = match_modules(["model.layers.0.q", "model.layers.1.q", "model.layers.2.q"], tensors)
    assert matched.unmatched == ("model.layers.2.q",)
    assert len(matched.names) == 2


def test_two_renamings_that_find_equally_many_are_refused() -> None:
    tensors = ["model.language_model.layers.0.q.weight", "language_model.model.layers.0.q.weight"]
    with pytest.raises(UnsupportedLora, match="fit the base in two ways"):
        match_modules(["model.layers.0.q"], tensors)


def test_no_match_at_all_shows_both_sides() -> None:
    with pytest.raises(UnsupportedLora) as caught:
        match_modules(["transformer.h.0.c_attn"], ["model.layers.0.self_attn.q_proj.weight"])
    assert "transformer.h.0.c_attn" in str(caught.value)
    assert "model.layers.0.self_attn.q_proj.weight" in str(caught.value)


def test_the_same_last_name_elsewhere_is_no_match() -> None:
    with pytest.raises(UnsupportedLora):
        match_modules(["model.layers.0.self_attn.q_proj"], ["vision.layers.0.self_attn.q_proj.weight"])


def test_a_renaming_that_makes_two_modules_one_weight_is_not_taken() -> None:
    matched = match_modules(["model.layers.0.q", "layers.0.q"], {"layers.0.q.weight"})
    assert matched.names == {"layers.0.q": "layers.0.q.weight"}
    assert matched.unmatched == ("model.layers.0.q",)


names = st.lists(
    st.sampled_from(["model", "language_model", "layers", "0", "1", "q", "base_model"]), min_size=1, max_size=6
)


@given(st.lists(names.map(".".join), min_size=1, max_size=6, unique=True), st.sets(names.map(".".join), max_size=8))
def test_every_match_is_a_tensor_of_the_base_and_no_two_modules_share_one(modules: list[str], bases: set[str]) -> None:
    tensors = {f"{name}.weight" for name in bases}
    try:
        matched = match_modules(modules, tensors)
    except UnsupportedLora:
        return
    assert set(matched.names.values()) <= tensors
    assert sorted([*matched.names, *matched.unmatched]) == sorted(modules)
    assert len(set(matched.names.values())) == len(matched.names)


@given(names.map(".".join), st.sampled_from(RENAMINGS))
def test_all_spellings_of_a_name_are_bare_the_same(name: str, renaming: Renaming) -> None:
    assert bare(renaming(name)) == bare(name) == bare(bare(name))
