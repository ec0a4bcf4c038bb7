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
    found = {renaming: _parts(base, served, renaming) for renaming in RENAMINGS}
    best = max(RENAMINGS, key=lambda renaming: len(found[renaming]))  # the first of equals, and EXACT is the first
    parts = found[best]
    if not parts:
        raise UnsupportedLora(
            f"no tensor that {engine} was served is one of the base's",
            found=", ".join(sorted(served)[:_SAMPLE]),
            expected=", ".join(sorted(base)[:_SAMPLE]),
        )
    return Pairing(parts, "" if best is EXACT else str(best), tuple(sorted(served.keys() - parts.keys())))


def _parts(base: Shapes, served: Shapes, renaming: Renaming) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, shape in served.items():
        for origin in (renaming(name), name):  # what stands outside the prefix, as a head does, keeps its name
            if base.get(origin) == shape:
                found[name] = (origin,)
                break
            if (fused := _fused(origin, base)) and _stacked(fused, base) == shape:
                found[name] = fused
                break
    return found


def _fused(name: str, base: Shapes) -> tuple[str, ...] | None:
    module, _, kind = name.rpartition(".")
    parent, _, last = module.rpartition(".")
    parts = tuple(f"{parent}.{part}.{kind}" for part in _FUSED.get(last, ()))
    return parts if parts and all(part in base for part in parts) else None


def _stacked(parts: tuple[str, ...], base: Shapes) -> tuple[int, ...] | None:
    """The shape of the parts' rows together; None where they have none, or are not of one width."""
    shapes = [base[part] for part in parts]
    if not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
        return None
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])
