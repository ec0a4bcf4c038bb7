"""Each recipe's bits are those of the plain formula it names; working in blocks and in place changes none of them."""

from __future__ import annotations

import pytest
import torch

from registry.core.model import LoraPair
from registry.served.changes import BiasChange, Change, DoraChange, LoraChange, ReplaceChange
from registry.served.recipes import RECIPES, Recipe, Scratch, blocks, merge_into, merged, rows_of
from registry.served.tensors import load
from tests.support.values import tensor_of

OUT, IN, R, SCALE = 700, 1024, 8, 1.7  # several blocks of rows, the last one shorter
FORMULAS = {
    "fp32": lambda w, a, b: (w.float() + SCALE * (b @ a)).to(w.dtype),
    "delta-rounded": lambda w, a, b: w + (SCALE * (b @ a)).to(w.dtype),
    "low-precision": lambda w, a, b: w + SCALE * (b.to(w.dtype) @ a.to(w.dtype)),
    "prerounded-fp32": lambda w, a, b: (w.float() + SCALE * (b.to(w.dtype).float() @ a.to(w.dtype).float())).to(
        w.dtype
    ),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def linear(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """W [out, in], A [r, in] and B [out, r], in sizes in which rounding matters."""
    return (torch.randn(OUT, IN) * 0.02).to(dtype), torch.randn(R, IN) * 0.05, torch.randn(OUT, R) * 0.02


def pair(a: torch.Tensor, b: torch.Tensor) -> LoraPair:
    return LoraPair("m", tensor_of(a), tensor_of(b))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def test_there_is_a_formula_for_every_recipe() -> None:
    assert list(FORMULAS) == list(RECIPES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_its_formula(recipe: Recipe, dtype: torch.dtype) -> None:
    w, a, b = linear(dtype)
    assert same(merged(recipe, w, LoraChange(pair(a, b), SCALE, transposed=False)), FORMULAS[recipe](w, a, b))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_transposed_weight_gets_the_same_numbers_transposed(recipe: Recipe) -> None:
    w, a, b = linear()
    found = merged(recipe, w.t().contiguous(), LoraChange(pair(a, b), SCALE, transposed=True))
    assert same(found, FORMULAS[recipe](w, a, b).t().contiguous())


def test_recipes_differ_in_about_the_share_of_elements_that_the_design_gives() -> None:
    w, a, b = linear()
    change = LoraChange(pair(a, b / 10), SCALE, transposed=False)
    found = {recipe: merged(recipe, w, change) for recipe in RECIPES}
    share = {recipe: (found[recipe] != found[Recipe.FP32]).float().mean().item() for recipe in RECIPES}
    assert share[Recipe.FP32] == 0
    assert all(0.01 < share[recipe] < 0.12 for recipe in RECIPES[1:]), share


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_factors_are_multiplied_as_what_they_are(dtype: torch.dtype) -> None:
    w, a, b = linear(dtype)
    a, b = a.to(dtype), b.to(dtype)
    change = LoraChange(pair(a, b), SCALE, transposed=False)
    expected = (w.float() + SCALE * (b.float() @ a.float())).to(dtype)
    assert same(merged(Recipe.FP32, w, change), expected)
    assert same(merged(Recipe.PREROUNDED_FP32, w, change), expected)  # nothing is left to round


def test_merged_leaves_its_input_and_merge_into_does_not() -> None:
    w, a, b = linear()
    before, change = w.clone(), LoraChange(pair(a, b), SCALE, transposed=False)
    expected = merged(Recipe.FP32, w, change)
    assert same(w, before)
    assert merge_into(Recipe.FP32, w, change) is w
    assert same(w, expected)


def test_scratch_memory_that_is_used_again_changes_nothing() -> None:
    scratch = Scratch()
    for recipe in (*RECIPES, *reversed(RECIPES)):
        w, a, b = linear()
        expected = FORMULAS[recipe](w, a, b)
        assert same(merge_into(recipe, w, LoraChange(pair(a, b), SCALE, transposed=False), scratch), expected)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dora_normalises_every_output_and_scales_it(dtype: torch.dtype, transposed: bool) -> None:
    w, a, b = linear(dtype)
    magnitude = torch.rand(OUT) + 0.5
    v = w.float() + SCALE * (b @ a)
    expected = (magnitude / v.norm(dim=1)).view(-1, 1) * v
    change = DoraChange(pair(a, b), SCALE, transposed=transposed, magnitude=tensor_of(magnitude))
    found = merged(Recipe.FP32, w.t().contiguous() if transposed else w, change)
    found = found.t() if transposed else found
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=0)
    torch.testing.assert_close(found.float().norm(dim=1), magnitude, rtol=1e-3, atol=0)
    assert (
        same(merged(Recipe.DELTA_ROUNDED, w.t().contiguous() if transposed else w, change).t(), found.t()) or transposed
    )


def test_a_bias_is_added_to_with_the_scale_of_its_layer() -> None:
    w, bias = torch.randn(OUT).bfloat16(), torch.randn(OUT)
    found = merged(Recipe.FP32, w, BiasChange("m", tensor_of(bias), SCALE))
    assert same(found, (w.float() + bias * SCALE).bfloat16())


def test_a_replacement_takes_the_dtype_of_what_it_replaces_and_may_be_merged_into() -> None:
    w, a, b = linear()
    other = torch.randn(OUT, IN)
    assert same(merged(Recipe.FP32, w, ReplaceChange(tensor_of(other))), other.bfloat16())
    then = LoraChange(pair(a, b), SCALE, transposed=False)
    assert same(merged(Recipe.FP32, w, ReplaceChange(tensor_of(other), then)), FORMULAS["fp32"](other.bfloat16(), a, b))


def changes() -> list[Change]:
    _, a, b = linear()
    lora = LoraChange(pair(a, b), SCALE, transposed=False)
    dora = DoraChange(pair(a, b), SCALE, transposed=False, magnitude=tensor_of(torch.rand(OUT)))
    other = tensor_of(torch.randn(OUT, IN))
    return [lora, dora, ReplaceChange(other), ReplaceChange(other, lora)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", range(4))
def test_rows_give_the_merge_and_the_exact_update_in_any_order(recipe: Recipe, kind: int) -> None:
    w, change = linear()[0], changes()[kind]
    rows = rows_of(recipe, w, change)
    found = [rows(each) for each in reversed(list(blocks(w)))][::-1]
    assert same(torch.cat([merge for merge, _ in found]), merged(recipe, w, change))
    update = torch.cat([part for _, part in found])
    assert all(part.is_contiguous() for each in found for part in each)
    match change:
        case ReplaceChange(tensor=other, then=LoraChange() as then):  # peft loads the replacement in W's dtype first
            exact = merged(Recipe.FP32, load(other).to(w.dtype).float(), then) - w.float()
        case _:
            exact = merged(Recipe.FP32, w.float(), change) - w.float()
    torch.testing.assert_close(update, exact, rtol=1e-4, atol=1e-5)


def test_the_update_of_a_lora_is_the_scaled_product_bit_for_bit() -> None:
    w, a, b = linear()
    for recipe in RECIPES:
        _, update = rows_of(recipe, w, LoraChange(pair(a, b), SCALE, transposed=False))(slice(None))
        assert same(update, SCALE * (b @ a))


def test_blocks_cover_every_row_once_and_stay_small() -> None:
    for shape in [(1, 1), (700, 1024), (3, 1 << 20), (5,), (0, 4)]:
        w = torch.empty(shape)
        found = list(blocks(w))
        assert [row for each in found for row in range(len(w))[each]] == list(range(len(w)))
        assert all(w[each].numel() <= 1 << 18 or each.stop - each.start == 1 for each in found)


def test_an_unknown_recipe_is_an_error() -> None:
    w, a, b = linear()
    with pytest.raises(ValueError, match="fp64"):
        merged("fp64", w, LoraChange(pair(a, b), SCALE, transposed=False))
