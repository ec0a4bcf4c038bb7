"""Which base tensors each served tensor is made of: by exact name, through known prefixes, and through fused rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from registry.core.errors import UnsupportedLora
from registry.served.names import EXACT, RENAMINGS, Renaming

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""vLLM's and SGLang's fused linear layers: the rows of their parts, in this order."""
_SAMPLE = 3


@dataclass(frozen=True, slots=True)
class Pairing:
    """How one engine's tensors and the base's belong together.

    Attributes:
        parts: served name to the base tensors whose rows it holds, in order.
        renamed: the change of prefix from served to base names, empty for none.
        strangers: served tensors that match nothing in the base.
    """

    parts: Mapping[str, tuple[str, ...]]
    renamed: str
    strangers: tuple[str, ...]


Shapes = Mapping[str, tuple[int, ...]]


def pair_up(base: Shapes, served: Shapes, engine: str) -> Pairing:
    """Find the renaming of served tensors under which most of them are made of base tensors.

    Raises:
        UnsupportedLora: not one tensor matches; samples of both sides are shown.
    """
    best = _best(base, served)
    parts = _parts(base, served, best)
    if not parts:
        raise UnsupportedLora(
            f"no tensor that {engine} was served is one of the base's",
            found=", ".join(sorted(served)[:_SAMPLE]),
            expected=", ".join(sorted(base)[:_SAMPLE]),
        )
    return Pairing(parts, "" if best is EXACT else str(best), tuple(sorted(served.keys() - parts.keys())))


def _best(base: Shapes, served: Shapes) -> Renaming:
    """The first of the renamings that find most, and EXACT is the first of all.

    Every renaming finds what EXACT finds, so that the rest decides: what of it starts with the old prefix, and only if
    something of the base starts with the new one.
    """
    exact = _parts(base, served, EXACT)
    rest = served.keys() - exact.keys()
    starts = {prefix: any(name.startswith(prefix) for name in base) for prefix in {each.new for each in RENAMINGS}}
    begun = {old: [name for name in rest if name.startswith(old)] for old in {each.old for each in RENAMINGS}}
    more = {
        renaming: sum(_made_of(base, renaming(name), served[name]) is not None for name in begun[renaming.old])
        for renaming in RENAMINGS
        if starts[renaming.new]
    }
    return max(more, key=more.__getitem__)


def _parts(base: Shapes, served: Shapes, renaming: Renaming) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, shape in served.items():
        # what stands outside the prefix, as a head does, keeps its name
        parts = _made_of(base, renaming(name), shape) or _made_of(base, name, shape)
        if parts is not None:
            found[name] = parts
    return found


def _made_of(base: Shapes, name: str, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if base.get(name) == shape:
        return (name,)
    fused = _fused(name, base)
    return fused if fused and _stacked(fused, base) == shape else None


def _fused(name: str, base: Shapes) -> tuple[str, ...] | None:
    module, _, kind = name.rpartition(".")
    parent, _, last = module.rpartition(".")
    if last not in _FUSED:
        return None
    parts = tuple(f"{parent}.{part}.{kind}" for part in _FUSED[last])
    return parts if all(part in base for part in parts) else None


def _stacked(parts: tuple[str, ...], base: Shapes) -> tuple[int, ...] | None:
    """The shape of the parts' rows together; None where they have none, or are not of one width."""
    shapes = [base[part] for part in parts]
    if not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
        return None
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])
