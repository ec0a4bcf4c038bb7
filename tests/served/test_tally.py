"""Tallies are what a direct computation over whole tensors gives, for every type and for values that break sums."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.core.comparison import State
from registry.served.parts import Block
from registry.served.tally import Tally

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
ROWS, COLUMNS = 37, 16
STEP = 5  # rows at a time: seven blocks and a shorter one
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(INTEGER[tensor.element_size()])


def place(value: torch.Tensor) -> int:
    """Where one float stands in the order of all floats of its type; both zeros at 0. In Python's own integers."""
    width = 8 * value.element_size()
    number = int(bits(value.reshape(1))[0]) % 2**width
    return -(number - 2 ** (width - 1)) if number >= 2 ** (width - 1) else number


def distances(one: torch.Tensor, other: torch.Tensor) -> list[int]:
    return [abs(place(a) - place(b)) for a, b in zip(one.flatten(), other.flatten(), strict=True)]


def bucket(distance: int) -> int:
    return 0 if distance == 0 else 1 << (distance - 1).bit_length()


def held(base: torch.Tensor, served: torch.Tensor, merged: torch.Tensor, update: torch.Tensor | None = None) -> Tally:
    change = torch.zeros(base.shape) if update is None else update
    found = Tally(is_targeted=True)
    for start in range(0, len(base), STEP):
        rows = slice(start, start + STEP)
        found.add(Block(memoryview(b""), base[rows], merged[rows], change[rows]), served[rows])
    return found


def setting(dtype: torch.dtype, size: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Base, update and merge."""
    base = torch.randn(ROWS, COLUMNS).to(dtype)
    update = torch.randn(ROWS, COLUMNS) * size
    return base, update, (base.float() + update).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-3])
def test_every_sum_is_the_direct_one(dtype: torch.dtype, size: float) -> None:
    base, update, merged = setting(dtype, size)
    served = merged.clone()
    served[::3] = base[::3]
    served[5, :4] = torch.tensor([3.0, -200.0, 1e-4, -0.0]).to(dtype)
    found = held(base, served, merged, update)
    apart = bits(served) != bits(merged)
    far = distances(served, merged)
    assert found.elements == served.numel()
    assert found.differing == int(apart.sum()) > 0
    assert found.max_ulp == max(far)
    assert found.max_abs == pytest.approx(float((served.double() - merged.double()).abs().max()), rel=1e-6)
    expected = Counter(bucket(each) for each, differs in zip(far, apart.flatten(), strict=True) if differs)
    assert {key: count for key, count in found.histogram.items() if count} == expected
    moved = ((served.double() - base.double()) * update.double()).sum()
    assert found.moved == pytest.approx(float(moved), rel=1e-4)
    assert found.energy == pytest.approx(float(update.double().square().sum()), rel=1e-5)
    assert found.updated == update.numel()
    assert found.kept == int((served == base).sum())
    assert found.state() is State.DIFFERENT


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_the_state_is_what_the_bits_are(dtype: torch.dtype) -> None:
    base, update, merged = setting(dtype)
    assert held(base, merged, merged, update).state() is State.IDENTICAL
    assert held(base, base, merged, update).state() is State.BASE
    assert held(base, base, base, update).state() is State.VACUOUS
    assert held(base, merged, base, update).state() is State.DIFFERENT
    near = merged.clone()
    bits(near)[-1, -1] += 1
    assert held(base, near, merged, update).state() is State.WITHIN_ULP
    bits(near)[-1, -1] += 1
    assert held(base, near, merged, update).state() is State.DIFFERENT
    lone = base.clone()
    lone[0, 0] = merged[0, 0]
    assert held(base, base, lone, update).state() is State.BASE, "one element tells the merge from the base"


def test_a_merge_whose_update_was_rounded_away_keeps_every_element() -> None:
    base, update = torch.full((ROWS, COLUMNS), 1.0, dtype=torch.bfloat16), torch.randn(ROWS, COLUMNS) * 1e-4
    merged = (base.float() + update).to(base.dtype)
    assert torch.equal(bits(base), bits(merged))
    found = held(base, base, merged, update)
    assert (found.state(), found.kept, found.updated) == (State.VACUOUS, base.numel(), base.numel())
    assert (found.moved, found.differing) == (0, 0)


def test_elements_without_an_update_are_neither_updated_nor_kept() -> None:
    base, update, _ = setting(torch.bfloat16)
    update[:, ::2] = 0
    merged = (base.float() + update).to(base.dtype)
    served = merged.clone()
    served[1] = base[1]
    found = held(base, served, merged, update)
    assert found.updated == update.numel() // 2
    assert found.kept == int(((served == base) & (update != 0)).sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sign_of_a_zero_differs_without_a_distance(dtype: torch.dtype) -> None:
    merged = torch.zeros(ROWS, COLUMNS, dtype=dtype)
    served = merged.clone()
    served[3, 3] = -0.0
    found = held(torch.ones_like(merged), served, merged)
    assert (found.differing, found.max_ulp, found.max_abs) == (1, 0, 0)
    assert {key: count for key, count in found.histogram.items() if count} == {0: 1}
    assert found.state() is State.WITHIN_ULP


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_numbers_of_both_signs_are_two_apart(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    merged = torch.full((ROWS, COLUMNS), tiny).to(dtype)
    assert found_ulp(-merged, merged) == 2


def found_ulp(served: torch.Tensor, merged: torch.Tensor) -> int:
    return held(torch.ones_like(merged), served, merged).max_ulp


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_infinitely_far_and_never_within_an_ulp(value: float, dtype: torch.dtype) -> None:
    base, update, merged = setting(dtype)
    served = merged.clone()
    served[-1, 2] = value
    found = held(base, served, merged, update)
    assert (found.differing, found.max_abs, found.state()) == (1, math.inf, State.DIFFERENT)


def test_equal_nans_are_equal_bits() -> None:
    base, update, merged = setting(torch.bfloat16)
    merged[0, 0] = math.nan
    assert held(base, merged.clone(), merged, update).state() is State.IDENTICAL


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_on_both_sides_is_no_distance(value: float) -> None:
    base, update, merged = setting(torch.bfloat16)
    merged[0, 0] = value
    served = merged.clone()
    bits(served)[0, 1] += 1
    found = held(base, served, merged, update)
    assert found.max_abs == float((served[0, 1].float() - merged[0, 1].float()).abs())


@pytest.mark.parametrize("distance", [2**24, 2**24 + 1, 2**25 - 1, 2**25, 2**28, 2**28 + 1])
def test_far_distances_fall_into_the_right_power_of_two(distance: int) -> None:
    """fp32 has distances that fp32 cannot count."""
    merged = torch.ones(2, 2)
    served = merged.clone()
    bits(served)[1, 1] += distance
    found = held(base=torch.zeros(2, 2), served=served, merged=merged)
    assert (found.max_ulp, {key for key, count in found.histogram.items() if count}) == (distance, {bucket(distance)})


@given(
    st.sampled_from([*DTYPES, torch.float64]),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=8),
)
def test_any_two_bit_patterns_are_as_far_apart_as_they_stand(dtype: torch.dtype, pairs: list[tuple[int, int]]) -> None:
    width = 8 * torch.empty(0, dtype=dtype).element_size()

    def tensor(numbers: list[int]) -> torch.Tensor:
        signed = [(number % 2**width) - (2**width if number >> (width - 1) & 1 else 0) for number in numbers]
        return torch.tensor(signed, dtype=INTEGER[width // 8]).view(dtype).reshape(1, -1)

    served, merged = tensor([one for one, _ in pairs]), tensor([other for _, other in pairs])
    far = [min(each, 2**63 - 1) for each in distances(served, merged)]  # no further than an int64 can say
    found = held(torch.ones_like(merged), served, merged)
    assert found.differing == int((bits(served) != bits(merged)).sum())
    if found.differing:
        assert found.max_ulp == max(far)
        expected = Counter(
            bucket(each) for each, differs in zip(far, (bits(served) != bits(merged)).flatten(), strict=True) if differs
        )
        if dtype is not torch.float64:
            assert {key: count for key, count in found.histogram.items() if count} == expected


def test_a_tensor_that_is_not_targeted_is_the_base_or_altered() -> None:
    base = torch.randn(ROWS, COLUMNS).to(torch.bfloat16)
    other = base.clone()
    bits(other)[-1, -1] ^= 1
    for served, state in ((base.clone(), State.UNTOUCHED), (other, State.ALTERED)):
        found = Tally(is_targeted=False)
        for row in range(ROWS):
            found.add(Block(memoryview(b""), base[row], None, None), served[row])
        assert (found.state(), found.elements) == (state, base.numel())


@pytest.mark.parametrize("shape", [(7,), (3, 1, 1000), (1, 1)])
def test_any_shape_is_held_whole(shape: tuple[int, ...]) -> None:
    base = torch.randn(shape).to(torch.bfloat16)
    update = torch.randn(shape)
    merged = (base.float() + update).to(torch.bfloat16)
    found = held(base, merged, merged, update)
    assert (found.elements, found.differing, found.updated) == (base.numel(), 0, base.numel())


def test_a_base_within_one_ulp_of_the_merge_is_not_taken_for_it() -> None:
    base = torch.ones(ROWS, COLUMNS, dtype=torch.bfloat16)
    update = torch.full((ROWS, COLUMNS), 2.0**-7)  # one ULP everywhere
    merged = (base.float() + update).bfloat16()
    almost_base = base.clone()
    almost_base[0, 0] = merged[0, 0]
    assert held(base, almost_base, merged, update).state() is State.DIFFERENT
    almost_merged = merged.clone()
    almost_merged[0, 0] = base[0, 0]
    assert held(base, almost_merged, merged, update).state() is State.WITHIN_ULP


def test_stochastic_rounding_of_an_update_that_nearest_rounding_loses_is_within_an_ulp() -> None:
    base = torch.ones(200, 50, dtype=torch.bfloat16)
    update = torch.full(base.shape, 2.0**-9)  # a quarter of an ULP
    merged = (base.float() + update).bfloat16()
    assert torch.equal(merged, base)
    served = torch.where(torch.rand(base.shape) < 0.25, torch.tensor(1 + 2.0**-7), torch.tensor(1.0)).bfloat16()
    assert held(base, served, merged, update).state() is State.WITHIN_ULP
    touched = base.clone()
    touched[0, 0] = 1 + 2.0**-7
    assert held(base, touched, merged, update).state() is State.DIFFERENT
