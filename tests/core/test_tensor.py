"""Bytes of views, and what they hold, judged by torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.core.dtypes import BY_NAME
from registry.core.tensor import Tensor, count_nonfinite, extent, is_zero
from tests.support.values import raw, tensor_of

DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64]
DTYPES += [torch.int64, torch.complex128, torch.float8_e4m3fn]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of a storage of random bytes: sliced with steps, indexed, transposed, expanded, in any order."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = int(np.prod(shape)) * dtype.itemsize
    data = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8)
    data = data % 2 if dtype == torch.bool else data
    view = data.view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)
    for _ in range(draw(st.integers(0, 5))):
        dims = range(view.dim())
        kind = draw(st.sampled_from(["transpose", "slice", "select", "expand"]))
        if kind == "expand" and view.dim() < 5:
            view = view.unsqueeze(draw(st.integers(0, view.dim())))
            view = view.expand([draw(st.integers(1, 3)) if size == 1 else size for size in view.shape])
        elif kind == "transpose" and view.dim():
            view = view.permute(draw(st.permutations(dims)))
        elif kind in ("slice", "select") and view.dim():
            dim = draw(st.sampled_from(dims))
            size = view.shape[dim]
            start = draw(st.integers(0, size))
            if kind == "slice":
                view = view[(slice(None),) * dim + (slice(start, None, draw(st.integers(1, 3))),)]
            elif start < size:
                view = view.select(dim, start)
    return view


def swapped(tensor: Tensor) -> Tensor:
    """The same tensor as a big-endian machine saves it."""
    width = tensor.dtype.swap_width
    whole = len(tensor.storage) // width * width
    storage = np.frombuffer(tensor.storage[:whole], f"u{width}").byteswap().tobytes()
    return replace(tensor, storage=memoryview(storage), big_endian=True)


@given(views())
def test_contiguous_gives_the_bytes_that_torch_gives_in_either_byte_order(view: torch.Tensor) -> None:
    tensor = tensor_of(view)
    assert (tensor.numel, tensor.nbytes) == (view.numel(), view.numel() * view.itemsize)
    assert bytes(tensor.contiguous()) == raw(view)
    assert bytes(swapped(tensor).contiguous()) == raw(view)


@given(views())
def test_a_view_needs_exactly_its_extent_of_storage(view: torch.Tensor) -> None:
    tensor = tensor_of(view)
    needed = extent(tensor.shape, tensor.stride) * tensor.dtype.itemsize
    assert bytes(replace(tensor, storage=tensor.storage[:needed]).contiguous()) == raw(view)


def test_contiguous_bytes_are_borrowed_not_copied() -> None:
    storage = bytearray(torch.ones(6).numpy().tobytes())
    tensor = Tensor(BY_NAME["float32"], (2, 2), (2, 1), memoryview(storage))
    borrowed = tensor.contiguous()
    storage[0] = 0xAA
    assert borrowed[0] == 0xAA


def nonfinite(value: torch.Tensor) -> int:
    tensor = tensor_of(value)
    return count_nonfinite(tensor.contiguous(), tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_of_all_16_bit_patterns_exactly_the_nonfinite_are_counted(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = torch.isfinite(every)
    assert nonfinite(every[finite]) == 0
    assert nonfinite(every[~finite]) == int((~finite).sum())


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_and_nans_are_told_from_the_largest_finite_values(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    finite = torch.tensor([info.max, info.min, info.tiny, info.smallest_normal, 0.0, -0.0], dtype=dtype)
    bad = torch.tensor([float("inf"), float("-inf"), float("nan"), -float("nan")], dtype=dtype)
    assert [nonfinite(each) for each in finite] == [0] * 6
    assert [nonfinite(each) for each in bad] == [1] * 4
    assert nonfinite(torch.cat([finite, bad])) == 4


@pytest.mark.parametrize("dtype", FLOATS)
def test_nonfinite_elements_are_found_wherever_they_lie(dtype: torch.dtype) -> None:
    chunk = (1 << 18) // dtype.itemsize
    value = torch.full((2 * chunk + 3,), torch.finfo(dtype).max, dtype=dtype)
    assert nonfinite(value) == 0
    places = [0, chunk - 1, chunk, 2 * chunk - 1, 2 * chunk + 2]
    value[places] = float("nan")
    assert nonfinite(value) == len(places) == int((~torch.isfinite(value)).sum())


def test_integers_are_always_finite() -> None:
    assert nonfinite(torch.tensor([-1, 2**31 - 1], dtype=torch.int32)) == 0


@pytest.mark.parametrize("length", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 16])
def test_one_set_bit_anywhere_is_not_zero(length: int) -> None:
    assert is_zero(memoryview(bytes(length)))
    for place in {0, length // 2, length - 1} if length else ():
        data = bytearray(length)
        data[place] = 0x80
        assert not is_zero(memoryview(data))
