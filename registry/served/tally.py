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
    energy: float = 0.0
    updated: int = 0
    kept: int = 0

    def add(self, block: Block, served: torch.Tensor) -> None:
        """Add a block of which `served` is the engine's copy, of the same shape and type."""
        is_base = same_bits(served, block.base)
        self.elements += served.numel()
        self.equals_base &= is_base
        if block.merged is None or block.update is None:
            return
        is_merge = same_bits(served, block.merged)
        self.merge_is_base &= is_base if is_merge else same_bits(block.merged, block.base)
        self._add_survival(block.base, served, block.update, is_base=is_base)
        if not is_merge:
            _add_distance(self, served, block.merged)

    def _add_survival(self, base: torch.Tensor, served: torch.Tensor, update: torch.Tensor, *, is_base: bool) -> None:
        import torch  # noqa: PLC0415

        flat = update.view(-1)
        # the usual case, that no element is zero, is seen faster than zeros are counted
        updated = flat.numel() if flat.abs().min() > 0 else int(torch.count_nonzero(flat))
        self.energy += torch.dot(flat, flat).item()
        self.updated += updated
        if is_base or not updated:
            self.kept += updated
            return
        wide = torch.promote_types(served.dtype, torch.float32)
        arrived = served.to(wide, copy=True).sub_(base).to(torch.float32).view(-1)
        self.moved += torch.dot(arrived, flat).item()
        changed = (as_bits(served) ^ as_bits(base)).view(-1)
        if updated < flat.numel():
            changed = changed[flat != 0]
        self.kept += updated - int(torch.count_nonzero(changed))

    def state(self) -> State:
        """What these sums say of the tensor."""
        if not self.is_targeted:
            return State.UNTOUCHED if self.equals_base else State.ALTERED
        if self.equals_base:
            return State.VACUOUS if self.merge_is_base else State.BASE
        if self.differing == 0:
            return State.IDENTICAL
        return State.WITHIN_ULP if self.max_ulp <= 1 else State.DIFFERENT


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
