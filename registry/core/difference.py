"""How far two adapters are apart, module by module, as functions (s*B@A) and as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SAME_FUNCTION = 1e-6
"""Relative distance of two updates up to which they count as equal: rounding the factors to fp32 gives about 1e-7."""


class Likeness(StrEnum):
    """What two adapters have in common."""

    SAME_TENSORS = "same tensors and settings"
    SAME_FUNCTION = "same function, other factors"
    DIFFERENT = "different functions"


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """One module of both adapters.

    Attributes:
        relative: |delta_1 - delta_2| / |delta_1| (Frobenius); None where delta_1 is zero and delta_2 is not.
        cosine: <delta_1, delta_2> / (|delta_1| |delta_2|); None where one of them is zero.
        norms: |delta_1|, |delta_2|; these and the two above are None where factors are infinite or NaN.
        ulp_a, ulp_b: the largest distance between elements of the factors in units in the last place; None where shape
            or type differ.
    """

    module: str
    relative: float | None
    cosine: float | None
    norms: tuple[float | None, float | None]
    ulp_a: int | None
    ulp_b: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Two adapters.

    Attributes:
        likeness: in a phrase.
        relative, cosine: as for a module, over all modules together; a module that one lacks counts as zero there.
        settings: the settings that differ, as (first, second).
        only_first, only_second: modules that one of them lacks.
        modules: those that both have, the most changed first.
    """

    likeness: Likeness
    relative: float | None
    cosine: float | None
    settings: Mapping[str, tuple[Any, Any]]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    modules: tuple[ModuleDifference, ...]
