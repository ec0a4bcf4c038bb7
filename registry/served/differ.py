"""The distance between two adapters, computed on the factors: no update is ever formed.

<B1 A1, B2 A2> = sum((B1^T B2) * (A1 A2^T)), which takes r*r*(in + out) operations instead of r*in*out, in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from registry.core.contents import AdapterContents
from registry.core.difference import SAME_FUNCTION, Difference, Likeness, ModuleDifference
from registry.core.errors import UnsupportedLora
from registry.core.model import LoraPair
from registry.core.patterns import scale_of
from registry.core.tensor import Tensor
from registry.served.runtime import calculating
from registry.served.tally import as_bits, distances
from registry.served.tensors import load


@calculating()
def differ(first: AdapterContents, second: AdapterContents) -> Difference:
    """Compare two adapters' updates s*B@A.

    Raises:
        UnsupportedLora: one of them is more than such updates (DoRA, replaced tensors, ...).
        StorageError: not enough memory.
    """
    for contents in (first, second):
        _require_plain(contents)
    ones, others = _pairs(first), _pairs(second)
    products = {
        module: _products(module, ones, others, first, second) for module in sorted(ones.keys() | others.keys())
    }
    both = [module for module in products if module in ones and module in others]
    modules = [_module(module, products[module], ones[module], others[module]) for module in both]
    total = (
        sum(product[0] for product in products.values()),
        sum(product[1] for product in products.values()),
        sum(product[2] for product in products.values()),
    )
    settings = _settings(first.lora.settings.function(), second.lora.settings.function())
    return Difference(
        likeness=_likeness(modules, settings, same_modules=ones.keys() == others.keys()),
        relative=_relative(total),
        cosine=_cosine(total),
        settings=settings,
        only_first=tuple(sorted(ones.keys() - others.keys())),
        only_second=tuple(sorted(others.keys() - ones.keys())),
        modules=tuple(sorted(modules, key=lambda each: (-_rank(each.relative), each.module))),
    )


Products = tuple[float, float, float]
"""<delta_1, delta_1>, <delta_2, delta_2>, <delta_1, delta_2>."""


def _require_plain(contents: AdapterContents) -> None:
    more = [*contents.magnitudes, *contents.replaced, *contents.biases, *contents.lora_biases, *contents.unsupported]
    if more:
        raise UnsupportedLora("more than updates s*B@A, which is all that diff compares", found=", ".join(more[:5]))


def _pairs(contents: AdapterContents) -> dict[str, LoraPair]:
    return {pair.module: pair for pair in (*contents.lora.pairs, *contents.embeddings)}


def _products(
    module: str,
    ones: Mapping[str, LoraPair],
    others: Mapping[str, LoraPair],
    first: AdapterContents,
    second: AdapterContents,
) -> Products:
    one, other = ones.get(module), others.get(module)
    scale_one = scale_of(module, first.lora.settings, one.rank) if one else 0.0
    scale_other = scale_of(module, second.lora.settings, other.rank) if other else 0.0
    return (
        scale_one**2 * _inner(one, one),
        scale_other**2 * _inner(other, other),
        scale_one * scale_other * _inner(one, other),
    )


def _inner(one: LoraPair | None, other: LoraPair | None) -> float:
    if one is None or other is None:
        return 0.0
    a_one, b_one = load(one.a).double(), load(one.b).double()
    a_other, b_other = (a_one, b_one) if other is one else (load(other.a).double(), load(other.b).double())
    if a_one.shape[1] != a_other.shape[1] or b_one.shape[0] != b_other.shape[0]:
        raise UnsupportedLora("the two adapters are of different bases", key=one.module)
    return float(((b_one.T @ b_other) * (a_one @ a_other.T)).sum())


def _module(module: str, products: Products, one: LoraPair, other: LoraPair) -> ModuleDifference:
    return ModuleDifference(
        module=module,
        relative=_relative(products),
        cosine=_cosine(products),
        norms=(_norm(products[0]), _norm(products[1])),
        ulp_a=_ulp(one.a, other.a),
        ulp_b=_ulp(one.b, other.b),
    )


def _norm(square: float) -> float | None:
    return math.sqrt(max(square, 0.0)) if math.isfinite(square) else None


def _relative(products: Products) -> float | None:
    one, other, between = products
    if not math.isfinite(one + other + between):
        return None
    if one <= 0:
        return 0.0 if other <= 0 else None
    return math.sqrt(max(one + other - 2 * between, 0.0) / one)


def _cosine(products: Products) -> float | None:
    one, other, between = products
    if not math.isfinite(one + other + between) or one <= 0 or other <= 0:
        return None
    return max(-1.0, min(1.0, between / math.sqrt(one * other)))


def _ulp(one: Tensor, other: Tensor) -> int | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return None
    return int(distances(as_bits(load(one)), as_bits(load(other))).max())


def _settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = sorted(one.keys() | other.keys())
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def _likeness(modules: list[ModuleDifference], settings: Mapping[str, Any], *, same_modules: bool) -> Likeness:
    if not same_modules or any(_rank(each.relative) > SAME_FUNCTION for each in modules):
        return Likeness.DIFFERENT
    same_tensors = all(each.ulp_a == 0 and each.ulp_b == 0 for each in modules)
    return Likeness.SAME_TENSORS if same_tensors and not settings else Likeness.SAME_FUNCTION


def _rank(relative: float | None) -> float:
    return math.inf if relative is None else relative
