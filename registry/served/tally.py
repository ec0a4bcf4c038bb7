"""Counting and measuring how an engine's copy of a tensor differs from its base and from its merge."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from registry.core.comparison import State
from registry.served.parts import Block

if TYPE_CHECKING:
    import torch

_NEXT_TO_NONE = 0.1


@dataclass(slots=True)
class Tally:
    """Sums over the elements of one tensor of one engine. Distances are from the merge.

    Attributes:
        is_targeted: whether the adapter changes this tensor.
        elements, differing: how many there are, and how many are not the merge's bits.
        max_ulp, max_abs: the largest distances; max_abs is infinite where one side is not finite.
        histogram: differing elements by ULP distance, rounded up to a power of two.
        equals_base: whether every element is the base's bits.
        merge_is_base: whether the merge is the base, bit for bit.
        moved: <served - base, update>.
        expected: <merge - base, update>, which is what rounding leaves of the update.
        energy: <update, update>.
        updated, kept: elements with a non-zero update, and those of them that are still the base's bits.
    """

    is_targeted: bool
    elements: int = 0
    differing: int = 0
    max_ulp: int = 0
    max_abs: float = 0.0
    histogram: Counter[int] = field(default_factory=Counter)
    equals_base: bool = True
    merge_is_base: bool = True
    moved: float = 0.0
    expected: float = 0.0
    energy: float = 0.0
    updated: int = 0
    kept: int = 0

    def add(self, block: Block, served: torch.Tensor) -> None:
        """Add a block of which `served` is the engine's copy, of the same shape and type."""
        import torch  # noqa: PLC0415

        is_base = same_bits(served, block.base)
        self.elements += served.numel()
        self.equals_base &= is_base
        if block.merged is None or block.update is None:
            return
        is_merge = same_bits(served, block.merged)
        self.merge_is_base &= is_base if is_merge else same_bits(block.merged, block.base)
        flat = block.update.view(-1)
        # the usual case, that no element is zero, is seen faster than zeros are counted
        updated = flat.numel() if flat.abs().min() > 0 else int(torch.count_nonzero(flat))
        self.energy += torch.dot(flat, flat).item()
        self.updated += updated
        self.kept += updated - (0 if is_base else self._changed(block, served, updated))
        moved = 0.0 if is_base else _along(served, block)
        self.moved += moved
        self.expected += moved if is_merge else _along(block.merged, block)
        if not is_merge:
            _add_distance(self, served, block.merged)

    def _changed(self, block: Block, served: torch.Tensor, updated: int) -> int:
        """How many elements with a non-zero update are not the base's bits."""
        import torch  # noqa: PLC0415

        assert block.update is not None  # noqa: S101
        changed = (as_bits(served) ^ as_bits(block.base)).view(-1)
        if updated < changed.numel():
            changed = changed[block.update.view(-1) != 0]
        return int(torch.count_nonzero(changed))

    def state(self) -> State:
        """What these sums say of the tensor."""
        if not self.is_targeted:
            return State.UNTOUCHED if self.equals_base else State.ALTERED
        if self.equals_base:
            return State.VACUOUS if self.merge_is_base else State.BASE
        if self.differing == 0:
            return State.IDENTICAL
        near = self.max_ulp <= 1 and math.isfinite(self.max_abs)  # at 0 only signs of zeros differ
        return State.WITHIN_ULP if near and (self.max_ulp == 0 or self._carries_the_update()) else State.DIFFERENT

    def _carries_the_update(self) -> bool:
        """Whether at least half of what the merge has of the update is there, or, where rounding left the merge next to
        none, half of the update itself: a base whose elements are all within one ULP of the merge has neither.
        """
        left = self.expected if self.expected > _NEXT_TO_NONE * self.energy else self.energy
        return self.energy > 0 and self.moved >= left / 2


def _along(tensor: torch.Tensor, block: Block) -> float:
    """<tensor - base, update>, in fp32 or wider."""
    import torch  # noqa: PLC0415

    assert block.update is not None  # noqa: S101
    wide = torch.promote_types(tensor.dtype, torch.float32)
    arrived = tensor.to(wide, copy=True).sub_(block.base).to(torch.float32)
    return float(torch.dot(arrived.view(-1), block.update.view(-1)))


def _add_distance(tally: Tally, served: torch.Tensor, merged: torch.Tensor) -> None:
    import torch  # noqa: PLC0415

    bits, merged_bits = as_bits(served), as_bits(merged)
    distance = distances(bits, merged_bits)
    unequal = bits != merged_bits
    differing = int(torch.count_nonzero(unequal))
    tally.differing += differing
    tally.max_ulp = max(tally.max_ulp, int(distance.max()))
    apart = (served.float() - merged.float()).abs_().masked_fill_(~unequal, 0)  # two equal infinities are not NaN apart
    tally.max_abs = max(tally.max_abs, float(apart.nan_to_num_(nan=math.inf, posinf=math.inf).max()))
    # frexp gives the e of d - 1 = m * 2**e with m in [0.5, 1): the exponent of d rounded up to a power of two
    exponents = torch.frexp((distance - 1).clamp_(min=0).to(_holds_exactly(distance)))[1]
    counts = torch.bincount(exponents.view(-1)).tolist()
    zero = served.numel() - int(torch.count_nonzero(distance))
    counts[0] -= zero
    tally.histogram[0] += differing - sum(counts)  # the two zeros: other bits, no distance
    for exponent, count in enumerate(counts):
        tally.histogram[1 << exponent] += count


def distances(bits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """How many ULP apart each two elements are, given as bits; at most 2**63 - 1, which only float64 can exceed."""
    import torch  # noqa: PLC0415

    one, other = ordered(bits), ordered(others)
    apart = one - other
    if bits.dtype is torch.int64:
        wrapped = (one < 0) != (other < 0)
        wrapped &= (apart < 0) != (one < 0)
        apart = apart.abs_().masked_fill_(wrapped, torch.iinfo(torch.int64).max)
    return apart.abs_()


def _holds_exactly(distance: torch.Tensor) -> torch.dtype:
    """A floating-point type without rounding for distances of 16- and of 32-bit elements."""
    import torch  # noqa: PLC0415

    return torch.float32 if distance.dtype is torch.int32 else torch.float64


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors of one type hold the same bits; compared eight bytes at a time where they fit."""
    import torch  # noqa: PLC0415

    pair = [tensor.reshape(-1) for tensor in (one, other)]
    wide = one.numel() * one.element_size() % 8 == 0 and all(tensor.data_ptr() % 8 == 0 for tensor in pair)
    return torch.equal(*(tensor.view(torch.int64) if wide else as_bits(tensor) for tensor in pair))


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage as integers of the same width."""
    import torch  # noqa: PLC0415

    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64, 1: torch.int8}[tensor.element_size()])


def ordered(bits: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floats: neighbours differ by 1, and both zeros are 0. Wide enough to subtract."""
    import torch  # noqa: PLC0415

    lowest = torch.iinfo(bits.dtype).min
    wide = bits.to(torch.int32 if bits.dtype == torch.int16 else torch.int64)
    return torch.where(wide < 0, lowest - wide, wide)
