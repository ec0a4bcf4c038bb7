"""The arithmetics by which trainers and engines merge an adapter (DESIGN 4.6), with torch.

Products are computed whole, as trainers do it, so that the bits are theirs; what is done element by element is done
in blocks of rows, which gives the same bits, stays in a core's cache and needs no second copy of a large tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from registry.core.dtypes import DType
from registry.core.tensor import Tensor
from registry.served.changes import BiasChange, Change, DoraChange, LoraChange, ReplaceChange
from registry.served.tensors import load

if TYPE_CHECKING:
    import torch

Merge = tuple["torch.Tensor", "torch.Tensor"]
"""Some rows: merged, in the type of W, and their exact update in fp32."""

Rows = Callable[[slice], Merge]
Block = Callable[[slice], "torch.Tensor"]
_BLOCK = 1 << 18  # elements


class Recipe(StrEnum):
    """How W, A, B and the scale s become merged weights of W's dtype.

    fp32: fp32(W) + s * (B @ A) in fp32, one rounding.
    delta-rounded: s * (B @ A) in fp32, rounded to W's dtype, then added in it.
    low-precision: A and B rounded to W's dtype; product, scale and sum in it.
    prerounded-fp32: A and B rounded to W's dtype, then as `fp32`.

    DoRA's `delta-rounded` is its `fp32`, as in peft, whose safe merge rounds no DoRA update by itself.
    """

    FP32 = "fp32"
    DELTA_ROUNDED = "delta-rounded"
    LOW_PRECISION = "low-precision"
    PREROUNDED_FP32 = "prerounded-fp32"


RECIPES = tuple(Recipe)


class Scratch:
    """Memory for products, kept from one tensor to the next: fresh pages cost more than the product itself."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def __call__(self, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor in this memory, valid until the next call."""
        import torch  # noqa: PLC0415

        needed = shape[0] * shape[1] * dtype.itemsize
        if self._memory is None or len(self._memory) < needed:
            self._memory = None
            self._memory = torch.empty(needed, dtype=torch.uint8)
        return self._memory[:needed].view(dtype).view(shape)


def merged(recipe: str, w: torch.Tensor, change: Change) -> torch.Tensor:
    """The merged tensor, of the shape and dtype of `w`, which stays as it is."""
    return merge_into(recipe, w.clone(), change)


def merge_into(recipe: str, w: torch.Tensor, change: Change, scratch: Scratch | None = None) -> torch.Tensor:
    """Merge into `w` itself, which is returned.

    Beside `w` this needs one fp32 tensor of its shape (two for DoRA on a transposed weight).

    Args:
        recipe: one of RECIPES.
        w: the base tensor, contiguous, of a floating-point dtype.
        change: what to do to it; shapes as `plan` has checked them.
        scratch: memory to use again.
    """
    merge, _ = _formulas(Recipe(recipe), w, change, scratch or Scratch())
    for rows in blocks(w):
        w[rows] = merge(rows)
    return w


def rows_of(recipe: str, w: torch.Tensor, change: Change, scratch: Scratch | None = None) -> Rows:
    """A function from a range of rows to two contiguous tensors: the merge, in the dtype of `w`, and the exact update.

    The update is fp32 and whatever the recipe, what fp32 arithmetic adds to W before any rounding: s * (B @ A).
    With `scratch`, the function is valid until that is used again.
    """
    merge, update = _formulas(Recipe(recipe), w, change, scratch or Scratch())
    return lambda rows: (merge(rows), update(rows))


def by_rows(
    recipe: str, dtype: DType, change: Change, device: str = "cpu"
) -> Callable[[torch.Tensor, slice], Merge] | None:
    """A function from some rows of W, and which they are, to their merge and exact update, or None where the change
    needs all of W.

    The product is formed for those rows only: no tensor of W's size is, at the price that another order of additions in
    the kernel library could change its last bits.
    """
    import torch  # noqa: PLC0415

    if not isinstance(change, LoraChange) or change.transposed:
        return None
    name, scale, kind = Recipe(recipe), change.scale, getattr(torch, dtype.name)
    a, b = (_factor(name, kind, factor).to(device) for factor in (change.pair.a, change.pair.b))
    if name in _EXACT:

        def exactly(w: torch.Tensor, rows: slice) -> Merge:
            update = (b[rows] @ a).mul_(scale)
            return _sum(name, w, update), update

        return exactly
    exact_a, exact_b = (_factor(Recipe.FP32, kind, factor).to(device) for factor in (change.pair.a, change.pair.b))

    def roughly(w: torch.Tensor, rows: slice) -> Merge:
        return _sum(name, w, (b[rows] @ a).mul_(scale)), (exact_b[rows] @ exact_a).mul_(scale)

    return roughly


def blocks(w: torch.Tensor) -> Iterator[slice]:
    """The rows of a tensor in ranges that are small enough for a core's cache."""
    rows = len(w)
    step = max(1, _BLOCK * rows // max(1, w.numel()))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _formulas(recipe: Recipe, w: torch.Tensor, change: Change, scratch: Scratch) -> tuple[Block, Block]:
    """The merge and the exact update of a range of rows. Both read no rows of `w` but those."""
    match change:
        case LoraChange() | BiasChange():
            return _added(recipe, w, change, scratch)
        case DoraChange():
            return _dora(recipe, w, change, scratch)
        case ReplaceChange():
            return _replaced(recipe, w, change, scratch)


def _added(recipe: Recipe, w: torch.Tensor, change: LoraChange | BiasChange, scratch: Scratch) -> tuple[Block, Block]:
    product = _product(recipe, w.dtype, change, scratch)
    exact = cache(lambda: product if recipe in _EXACT else _product(Recipe.FP32, w.dtype, change, Scratch()))

    def update(rows: slice) -> torch.Tensor:
        return (exact()[rows] * change.scale).contiguous()

    def merge(rows: slice) -> torch.Tensor:
        delta = (product[rows] * change.scale).contiguous()
        return _sum(recipe, w[rows], delta)

    return merge, update


def _sum(recipe: Recipe, w: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """W + delta in the type of W: added in that type, or in the delta's with one rounding.

    W is widened first, which is exact: torch adds two types in one pass a dozen times slower.
    """
    if recipe is Recipe.DELTA_ROUNDED:
        return w + delta.to(w.dtype)
    return w.to(delta.dtype, copy=True).add_(delta).to(w.dtype)


def _replaced(recipe: Recipe, w: torch.Tensor, change: ReplaceChange, scratch: Scratch) -> tuple[Block, Block]:
    given = load(change.tensor)
    if change.then is None:
        return lambda rows: given[rows].to(w.dtype), lambda rows: given[rows].float() - w[rows]
    other = given.to(w.dtype)
    merge, update = _formulas(recipe, other, change.then, scratch)
    return merge, lambda rows: update(rows) + other[rows] - w[rows]


def _dora(recipe: Recipe, w: torch.Tensor, change: DoraChange, scratch: Scratch) -> tuple[Block, Block]:
    whole = _dora_whole(recipe, w, change, scratch)
    exact = cache(lambda: whole if recipe in _EXACT else _dora_whole(Recipe.FP32, w, change, Scratch()))
    return lambda rows: whole(rows).to(w.dtype), lambda rows: exact()(rows) - w[rows]


def _dora_whole(recipe: Recipe, w: torch.Tensor, change: DoraChange, scratch: Scratch) -> Block:
    """Source: `DoraLinearVariant.merge_unsafe` and `DoraLinearLayer.get_weight_norm` in peft."""
    import torch  # noqa: PLC0415

    delta = _product(recipe, w.dtype, change, scratch).mul_(change.scale)
    total = torch.empty_like(w, dtype=delta.dtype) if change.transposed else delta  # the norm's order of summation
    for rows in blocks(w):
        torch.add(w[rows], delta[rows], out=total[rows])
    del delta
    norm = torch.linalg.norm(total.t() if change.transposed else total, dim=1)
    factor = _factor(recipe, w.dtype, change.magnitude) / norm
    if change.transposed:
        return lambda rows: factor * total[rows]
    return lambda rows: factor[rows].view(-1, 1) * total[rows]


_EXACT = frozenset({Recipe.FP32, Recipe.DELTA_ROUNDED})  # their product is the exact one


def _product(
    recipe: Recipe, dtype: torch.dtype, change: LoraChange | DoraChange | BiasChange, scratch: Scratch
) -> torch.Tensor:
    """B @ A (or the bias), not yet scaled, in the orientation of the weight."""
    import torch  # noqa: PLC0415

    if isinstance(change, BiasChange):
        return _factor(recipe, dtype, change.bias)
    a, b = _factor(recipe, dtype, change.pair.a), _factor(recipe, dtype, change.pair.b)
    product = torch.mm(b, a, out=scratch((b.shape[0], a.shape[1]), b.dtype))
    return product.t() if change.transposed else product


def _factor(recipe: Recipe, dtype: torch.dtype, tensor: Tensor) -> torch.Tensor:
    """A copy of a factor in the type in which the recipe multiplies, in torch's own (aligned) memory."""
    import torch  # noqa: PLC0415

    factor = load(tensor)
    if recipe is Recipe.LOW_PRECISION:
        return factor.to(dtype, copy=True)
    if recipe is Recipe.PREROUNDED_FP32:
        factor = factor.to(dtype)
    return factor.to(torch.float32, copy=True)
