"""Distances between adapters are those of the updates s*B@A themselves, formed directly in fp64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.core.difference import Difference, Likeness
from registry.core.errors import UnsupportedLora
from registry.served.differ import differ
from tests.support.merging import read_adapter, save_adapter
from tests.support.serving import MODULES, K, Q, State, factors_of, modules_of, updates_of


def adapter(directory: Path, factors: State, **config: Any) -> Path:
    return save_adapter(directory, {f"base_model.model.{name}": each for name, each in factors.items()}, **config)


def apart(root: Path, first: State, second: State, **config: Any) -> Difference:
    """`config` is the second's."""
    one, other = adapter(root / "one", first), adapter(root / "other", second, **config)
    return differ(read_adapter(one), read_adapter(other))


def changed(factors: State, a: float, b: float) -> State:
    return {name: tensor * (a if "lora_A" in name else b) for name, tensor in factors.items()}


@pytest.mark.parametrize("noise", [1.0, 1e-1, 1e-3])
def test_every_number_is_that_of_the_updates_formed_directly(noise: float, tmp_path: Path) -> None:
    first, other = factors_of(), factors_of(seed=9)
    second = {name: tensor + noise * other[name] for name, tensor in first.items()}
    found = apart(tmp_path, first, second, lora_alpha=6)
    ones, others = updates_of(first), updates_of(second, 6 / 4)
    assert {each.module for each in found.modules} == set(MODULES)
    for each in found.modules:
        one, two = ones[f"{each.module}.weight"], others[f"{each.module}.weight"]
        assert each.norms == pytest.approx((float(one.norm()), float(two.norm())))
        assert each.relative == pytest.approx(float((one - two).norm() / one.norm()), rel=1e-6)
        assert each.cosine == pytest.approx(float((one * two).sum() / one.norm() / two.norm()))
    flat, other_flat = (torch.cat([each.flatten() for each in updates.values()]) for updates in (ones, others))
    assert found.relative == pytest.approx(float((flat - other_flat).norm() / flat.norm()), rel=1e-6)
    assert found.cosine == pytest.approx(float(flat @ other_flat / flat.norm() / other_flat.norm()))
    assert found.settings == {"lora_alpha": (8, 6)}
    assert found.likeness is Likeness.DIFFERENT
    order = [each.relative for each in found.modules]
    assert order == sorted(order, reverse=True), "the most changed first"  # type: ignore[type-var]


def test_an_adapter_and_itself_are_the_same(tmp_path: Path) -> None:
    found = apart(tmp_path, factors_of(), factors_of())
    assert (found.likeness, found.settings) == (Likeness.SAME_TENSORS, {})
    assert found.relative == pytest.approx(0, abs=1e-7)
    assert found.cosine == pytest.approx(1)
    assert all((each.ulp_a, each.ulp_b) == (0, 0) for each in found.modules)


@pytest.mark.parametrize("factor", [2.0, 3.0, -1.0])
def test_factors_that_trade_a_scale_are_the_same_function(factor: float, tmp_path: Path) -> None:
    found = apart(tmp_path, factors_of(), changed(factors_of(), factor, 1 / factor))
    assert found.likeness is Likeness.SAME_FUNCTION
    assert found.relative == pytest.approx(0, abs=1e-6)
    assert all(each.ulp_a and each.ulp_b for each in found.modules)


def test_rotated_factors_are_the_same_function(tmp_path: Path) -> None:
    first, second = factors_of(), {}
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    for name, tensor in first.items():
        turned = rotation @ tensor.double() if "lora_A" in name else tensor.double() @ rotation.T
        second[name] = turned.float()
    found = apart(tmp_path, first, second)
    assert found.likeness is Likeness.SAME_FUNCTION
    assert found.relative is not None
    assert 0 < found.relative < 1e-6


def test_alpha_folded_into_b_is_the_same_function_with_another_setting(tmp_path: Path) -> None:
    found = apart(tmp_path, factors_of(), changed(factors_of(), 1, 2), lora_alpha=4)
    assert (found.likeness, found.settings) == (Likeness.SAME_FUNCTION, {"lora_alpha": (8, 4)})


def test_a_setting_that_changes_nothing_is_still_told(tmp_path: Path) -> None:
    found = apart(tmp_path, factors_of(), factors_of(), alpha_pattern={"q_proj": 8})
    assert (found.likeness, found.settings) == (
        Likeness.SAME_FUNCTION,
        {"alpha_pattern": (None, {"q_proj": 8})},
    )


def test_another_rank_can_be_the_same_function(tmp_path: Path) -> None:
    first = factors_of([Q])
    second = {name: torch.cat([each, torch.zeros_like(each)], int("lora_B" in name)) for name, each in first.items()}
    found = apart(tmp_path, first, second, r=8, lora_alpha=16)
    assert found.likeness is Likeness.SAME_FUNCTION
    assert (found.modules[0].ulp_a, found.modules[0].ulp_b) == (None, None)


def test_equal_tensors_with_another_scale_are_different_functions(tmp_path: Path) -> None:
    found = apart(tmp_path, factors_of(), factors_of(), lora_alpha=16)
    assert found.likeness is Likeness.DIFFERENT
    assert (found.relative, found.cosine) == (pytest.approx(1), pytest.approx(1))
    rslora = apart(tmp_path, factors_of(), factors_of(), use_rslora=True)
    assert (rslora.likeness, rslora.relative) == (Likeness.DIFFERENT, pytest.approx(1))
    assert rslora.settings == {"use_rslora": (None, True)}


def test_opposite_updates_have_the_cosine_minus_one(tmp_path: Path) -> None:
    found = apart(tmp_path, factors_of(), changed(factors_of(), 1, -1))
    assert (found.cosine, found.relative) == (pytest.approx(-1), pytest.approx(2))


def test_one_step_of_one_element_is_one_ulp_and_not_the_same_tensors(tmp_path: Path) -> None:
    second = factors_of([Q])
    second[f"{Q}.lora_B.weight"].view(torch.int32)[3, 1] += 1
    found = apart(tmp_path, factors_of([Q]), second)
    assert (found.modules[0].ulp_a, found.modules[0].ulp_b) == (0, 1)
    assert found.likeness is Likeness.SAME_FUNCTION


def test_modules_of_one_side_are_listed_and_count_as_zero_on_the_other(tmp_path: Path) -> None:
    first, second = factors_of([Q, MODULES[-1]]), {**factors_of([Q]), **factors_of([K])}
    found = apart(tmp_path, first, second)
    assert (found.only_first, found.only_second) == ((MODULES[-1],), (K,))
    assert [each.module for each in found.modules] == [Q]
    assert found.modules[0].relative == pytest.approx(0, abs=1e-6)
    assert found.likeness is Likeness.DIFFERENT
    ones, others = updates_of(first), updates_of(second)
    lost, gained = ones[f"{MODULES[-1]}.weight"], others[f"{K}.weight"]
    total = sum(update.square().sum() for update in ones.values())
    assert found.relative == pytest.approx(math.sqrt((lost.square().sum() + gained.square().sum()) / total))


def test_updates_of_zero_have_no_direction_and_no_relative_distance_from_them(tmp_path: Path) -> None:
    zero = changed(factors_of(), 1, 0)
    into, back, both = (apart(tmp_path, *pair) for pair in ((zero, factors_of()), (factors_of(), zero), (zero, zero)))
    assert (into.relative, into.cosine, into.likeness) == (None, None, Likeness.DIFFERENT)
    assert (back.relative, back.cosine, back.likeness) == (1, None, Likeness.DIFFERENT)
    assert (both.relative, both.cosine) == (0, None)
    assert all(each.relative == 0 for each in both.modules)


def test_adapters_of_different_bases_are_refused_by_module(tmp_path: Path) -> None:
    other = {name: each[:, :-1] if "lora_A" in name else each for name, each in factors_of([Q]).items()}
    with pytest.raises(UnsupportedLora, match="different bases") as caught:
        apart(tmp_path, factors_of([Q]), {name: each.contiguous() for name, each in other.items()})
    assert caught.value.key == Q


def test_more_than_updates_is_refused_by_name_on_either_side(tmp_path: Path) -> None:
    plain = factors_of([Q])
    magnitude = {f"{Q}.lora_magnitude_vector": torch.ones(32)}
    dora = read_adapter(adapter(tmp_path / "dora", {**plain, **magnitude}, use_dora=True))
    saved = read_adapter(adapter(tmp_path / "saved", {**plain, "lm_head.weight": torch.ones(64, 32)}))
    simple = read_adapter(adapter(tmp_path / "plain", plain))
    for more, name in ((dora, Q), (saved, "lm_head")):
        for pair in ((more, simple), (simple, more)):
            with pytest.raises(UnsupportedLora, match=name):
                differ(*pair)


def test_embeddings_are_compared_too(tmp_path: Path) -> None:
    def embedding(scale: float) -> State:
        make = torch.Generator().manual_seed(2)
        return {
            "model.embed_tokens.lora_embedding_A": torch.randn(4, 64, generator=make),
            "model.embed_tokens.lora_embedding_B": torch.randn(32, 4, generator=make) * scale,
        }

    found = apart(tmp_path, {**factors_of([Q]), **embedding(1)}, {**factors_of([Q]), **embedding(3)})
    assert [each.module for each in found.modules] == ["model.embed_tokens", Q]
    assert found.modules[0].relative == pytest.approx(2)
    assert modules_of(factors_of([Q])) == [Q]
