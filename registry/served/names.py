"""From an adapter's module names to a base's tensor names: exactly, or through one renaming of prefixes that fits best.

One model has several spellings: with or without the wrapper that training put around it, and as a language model of its
own or as a part of a larger one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations

from registry.core.errors import UnsupportedLora

WEIGHT = ".weight"
_PREFIXES = (
    "",
    "model.",
    "model.language_model.",
    "language_model.",
    "language_model.model.",
    "base_model.model.",
    "transformer.",
    "module.",
)
_WRAPPED = re.compile(f"(?:{'|'.join(re.escape(each) for each in _PREFIXES if each)})*")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Renaming:
    """Replaces the prefix `old` by `new`; names that do not start with `old` stay as they are."""

    old: str
    new: str

    def __call__(self, name: str) -> str:
        return self.new + name.removeprefix(self.old) if name.startswith(self.old) else name

    def __str__(self) -> str:
        return "exact" if self.old == self.new else f"{self.old or '(none)'} -> {self.new or '(none)'}"


EXACT = Renaming("", "")
RENAMINGS = (EXACT, *(Renaming(old, new) for old, new in permutations(_PREFIXES, 2)))


@dataclass(frozen=True, slots=True)
class Matched:
    """Which weight of the base belongs to which module.

    Attributes:
        names: module to the name of its weight in the base.
        unmatched: modules that the base does not have.
        prefix: the renaming that led there; for other tensors of the same adapter too.
    """

    names: dict[str, str]
    unmatched: tuple[str, ...]
    prefix: Renaming


def match_modules(modules: Sequence[str], tensors: Collection[str]) -> Matched:
    """Find `<module>.weight` in `tensors` for every module, under the one renaming that finds most of them.

    The names as they are win over every renaming that finds no more.

    Args:
        modules: the adapter's modules, without `base_model.model.`.
        tensors: all tensor names of the base (a set or a mapping).

    Raises:
        UnsupportedLora: no module is found, or two renamings find equally many and disagree.
    """
    ends = {_last(module) + WEIGHT for module in modules}
    candidates = {name for name in tensors if _last_two(name) in ends}
    found = {renaming: _found(renaming, modules, candidates) for renaming in RENAMINGS}
    most = max(map(len, found.values()))
    if most == 0 and modules:
        raise UnsupportedLora(
            "none of the adapter's modules is in the base: it would change nothing",
            found=f"modules {_sample(modules)}",
            expected=f"among tensors {_sample(candidates or tensors)}",
        )
    best = [renaming for renaming in RENAMINGS if len(found[renaming]) == most]
    chosen = best[0]
    if chosen is not EXACT:
        other = next((each for each in best if found[each] != found[chosen]), None)
        if other is not None:
            raise UnsupportedLora(
                "the adapter's modules fit the base in two ways", found=f"{chosen} and {other}", expected="one"
            )
    names = found[chosen]
    return Matched(names, tuple(module for module in modules if module not in names), chosen)


def bare(name: str) -> str:
    """The name without any of the known prefixes: the same for all spellings of one tensor or module."""
    return _WRAPPED.sub("", name, count=1)


def _found(renaming: Renaming, modules: Sequence[str], tensors: Collection[str]) -> dict[str, str]:
    renamed = ((module, renaming(module) + WEIGHT) for module in modules)
    found = {module: name for module, name in renamed if name in tensors}
    return found if len(set(found.values())) == len(found) else {}  # two modules are never one weight


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _last_two(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _sample(names: Collection[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return ", ".join(shown) + (", ..." if len(names) > _SHOWN else "")
