"""Finding LoRA factors by name in the nested mapping of a checkpoint, and pairing them up. Works on names and shapes
only; no tensor bytes are touched here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from registry.checkpoints.pickled import Inert, TensorRef
from registry.checkpoints.wrappers import unwrapped
from registry.core.dtypes import LORA_DTYPES
from registry.core.errors import UnsupportedLora

DOCUMENTED = ("lora", "state")
"""Where aorta's trainer keeps the factors."""

_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[ABab])(?:\.default)?(?:\.weight)?")
_NOT_WEIGHTS = frozenset({"optimizer", "optim", "optimizer_state", "optimizer_states", "grad", "grads", "gradients"})
_TORCHTUNE = re.compile(r"(?:decoder\.)?layers\.\d+\.(?:attn\.(?:[qkv]_proj|output_proj)|mlp\.w[123])")
_SAMPLE = 5


@dataclass(frozen=True, slots=True)
class FoundPair:
    """Both factors of one module, not yet read."""

    module: str
    a: TensorRef
    b: TensorRef


@dataclass(frozen=True, slots=True)
class FoundLora:
    """All pairs of a checkpoint, sorted by module.

    Attributes:
        where: path of the mapping that holds them.
        stripped: wrapper prefixes that were removed.
        aliases: pairs of names that share one storage view.
        beside: how many other tensors the mapping holds.
    """

    where: tuple[str, ...]
    pairs: tuple[FoundPair, ...]
    stripped: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...]
    beside: int


@dataclass(slots=True)
class _Candidate:
    where: tuple[str, ...] = ()
    factors: dict[str, Any] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def find_lora(contents: object, path: str) -> FoundLora:
    """The LoRA in a checkpoint's contents; `path` names the file in messages.

    Raises:
        UnsupportedLora: none or several LoRAs, an unpaired factor, colliding names, shapes or types that are no LoRA,
            or other LoRA tensors (magnitudes, embeddings, ...) that the export would lose.
    """
    candidate = _choose(list(_mappings(contents)), path)
    _refuse_other_lora(candidate, path)
    factors: dict[tuple[str, str], tuple[str, TensorRef]] = {}
    stripped: set[str] = set()
    for key, value in candidate.factors.items():
        match = _FACTOR.fullmatch(key)
        assert match is not None  # noqa: S101  only such keys are factors
        module, removed = unwrapped(match["module"])
        stripped |= removed
        _check_name(module, key, path)
        _refuse_torchtune(module, key, path)
        slot = (module, match["factor"].upper())
        if slot in factors:
            raise UnsupportedLora(
                "two keys mean the same tensor once wrapper prefixes are removed",
                path=path,
                key=key,
                found=factors[slot][0],
            )
        factors[slot] = (key, _checked(value, key, path))
    return FoundLora(
        where=candidate.where,
        pairs=tuple(_pairs(factors, path)),
        stripped=tuple(sorted(stripped)),
        aliases=tuple(aliases(candidate.factors)),
        beside=len(candidate.others),
    )


def _mappings(contents: object) -> Iterator[_Candidate]:
    """Every mapping with LoRA keys that is reachable through mappings and sequences, each once, without recursion."""
    waiting: list[tuple[_Place | None, object]] = [(None, contents)]
    seen: set[int] = set()
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Inert):
            value = value.items_
        if isinstance(value, Mapping):
            candidate = _Candidate()
            for key, item in value.items():
                if isinstance(key, str) and _FACTOR.fullmatch(key) and not isinstance(item, Mapping):
                    candidate.factors[key] = item
                elif isinstance(item, TensorRef):
                    candidate.others.append(_spelled(key))
                else:
                    waiting.append((_Place(place, key), item))
            if candidate.factors:
                candidate.where = _path_of(place)
                yield candidate
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            waiting.extend((_Place(place, index), item) for index, item in enumerate(value))


class _Place(NamedTuple):
    """A key and the place of its container. Paths are spelled out for the few that need one: nesting can be deep."""

    parent: _Place | None
    key: object


def _path_of(place: _Place | None) -> tuple[str, ...]:
    path = []
    while place is not None:
        path.append(_spelled(place.key))
        place = place.parent
    return tuple(reversed(path))


def _spelled(key: object) -> str:
    """A key in a path: other kinds than these may be large, and name nothing."""
    return str(key) if isinstance(key, str | int) else f"<{type(key).__name__}>"


def _choose(candidates: list[_Candidate], path: str) -> _Candidate:
    documented = [candidate for candidate in candidates if candidate.where == DOCUMENTED]
    weights = documented or [found for found in candidates if not _NOT_WEIGHTS.intersection(found.where)]
    if not weights:
        raise UnsupportedLora("no LoRA tensors", path=path, expected="keys like <module>.lora_A.weight")
    if len(weights) > 1:
        places = sorted(".".join(candidate.where) or "(top level)" for candidate in weights)
        raise UnsupportedLora(
            "several mappings hold LoRA tensors and none is lora.state", path=path, found=", ".join(places[:_SAMPLE])
        )
    return weights[0]


def _refuse_other_lora(candidate: _Candidate, path: str) -> None:
    strict = candidate.where == DOCUMENTED
    lost = sorted(key for key in candidate.others if strict or ".lora_" in key or "lora_magnitude" in key)
    if lost:
        raise UnsupportedLora(
            f"{len(lost)} tensors beside lora_A and lora_B would be lost",
            path=path,
            key=".".join(candidate.where),
            found=", ".join(lost[:_SAMPLE]),
        )


def _check_name(module: str, key: str, path: str) -> None:
    if not module or not key.isprintable() or any(not part or part.isspace() for part in module.split(".")):
        raise UnsupportedLora("not the name of a module", path=path, key=repr(key), found=repr(module))


def _refuse_torchtune(module: str, key: str, path: str) -> None:
    # Its rows of q and k are in another order than those of the base on the hub: renaming would change the function.
    if _TORCHTUNE.fullmatch(module):
        raise UnsupportedLora(
            "torchtune's own names and order of rows, which no base on the hub has",
            path=path,
            key=key,
            hint="Add the directory: torchtune writes the adapter for peft beside this file",
        )


def dense(value: object, key: str, path: str) -> TensorRef:
    """`value` if it is a dense tensor.

    Raises:
        UnsupportedLora: it is a sharded one, or none.
    """
    if isinstance(value, Inert):
        problem = (
            "a sharded tensor" if "DTensor" in value.global_name or "Sharded" in value.global_name else "no tensor"
        )
        raise UnsupportedLora(problem, path=path, key=key, found=value.global_name, expected="a dense tensor")
    if not isinstance(value, TensorRef):
        raise UnsupportedLora("no tensor", path=path, key=key, found=type(value).__name__, expected="a dense tensor")
    return value


def _checked(item: object, key: str, path: str) -> TensorRef:
    value = dense(item, key, path)
    if len(value.shape) != 2:  # noqa: PLR2004
        raise UnsupportedLora(
            "not a matrix: a sharded or flattened save?", path=path, key=key, found=f"shape {list(value.shape)}"
        )
    if 0 in value.shape:
        raise UnsupportedLora("empty tensor: a sharded save?", path=path, key=key, found=f"shape {list(value.shape)}")
    if value.dtype not in LORA_DTYPES:
        names = ", ".join(sorted(dtype.name for dtype in LORA_DTYPES))
        raise UnsupportedLora("not a type for LoRA weights", path=path, key=key, found=value.dtype, expected=names)
    return value


def _pairs(factors: dict[tuple[str, str], tuple[str, TensorRef]], path: str) -> Iterator[FoundPair]:
    for module in sorted({module for module, _ in factors}):
        a, b = factors.get((module, "A")), factors.get((module, "B"))
        if a is None or b is None:
            key = (a or b or ("", None))[0]
            raise UnsupportedLora(f"has no lora_{'B' if b is None else 'A'} beside it", path=path, key=key)
        if a[1].shape[0] != b[1].shape[1]:
            raise UnsupportedLora(
                "the two factors disagree on the rank",
                path=path,
                key=module,
                found=f"lora_A {list(a[1].shape)}, lora_B {list(b[1].shape)}",
                expected="lora_A [r, in], lora_B [out, r]",
            )
        yield FoundPair(module, a[1], b[1])


def aliases(factors: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pairs of names of one storage view."""
    first: dict[TensorRef, str] = {}
    for key, ref in sorted(factors.items()):
        if ref in first:
            yield first[ref], key
        else:
            first[ref] = key
