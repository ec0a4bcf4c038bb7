"""Which settings hold for which module: rank, alpha and scale by name or pattern, resolved as peft resolves them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from registry.core import regex
from registry.core.errors import UnsupportedLora, shown
from registry.core.model import LoraSettings

T = TypeVar("T")
ALL_LINEAR = "all-linear"
MAX_KEYS = 10_000
"""Of one pattern: each is tried on every module."""
_MOST_WAYS = 1_000_000
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


def matching(module: str, pattern: tuple[tuple[str, T], ...]) -> list[T]:
    r"""The values of all keys that match a module's name or its end; the first one counts.

    Source: peft's `get_pattern_key`, `re.match(rf"(.*\.)?({key})$", module)`.

    Raises:
        UnsupportedLora: a key is no pattern that `is_usable`, or takes too long to be matched.
    """
    return [value for key, value in pattern if _is_end(key, module)]


def is_usable(key: str) -> bool:
    """Whether a pattern's key is printable, of a kind that is matched here, and one that peft will be done with.

    peft tries one way to match after the other, so there may only be so many: nested repetitions have too many, and so
    have more than two without a limit.
    """
    if not key.isprintable():
        return False
    try:
        return regex.compiled(key).ways <= _MOST_WAYS
    except ValueError:
        return False


def _is_end(key: str, module: str) -> bool:
    if _PLAIN.fullmatch(key):
        if len(module) < len(key) or not _alike(key, module[len(module) - len(key) :]):
            return False
        before = module[: len(module) - len(key)]
        return not before or before.endswith(".")
    starts = {0, *(dot.end() for dot in re.finditer(r"\.", module))}
    return len(module) in _ends(key, module, starts)


def _alike(key: str, name: str) -> bool:
    """Whether the two are equal, a dot in `key` being any character."""
    return key == name or ("." in key and all(one in (".", other) for one, other in zip(key, name, strict=True)))


def _ends(pattern: str, module: str, starts: set[int]) -> set[int]:
    try:
        return regex.compiled(pattern).ends(module, starts)
    except (ValueError, regex.TooManySteps) as error:
        problem = "takes too long to be matched" if isinstance(error, regex.TooManySteps) else "cannot be used"
        raise UnsupportedLora(f"a pattern {problem}", key=shown(module), found=shown(pattern)) from error


def is_usable_target(pattern: str) -> bool:
    """Whether `target_modules`, where it is a regular expression, is of a kind that is matched here."""
    try:
        regex.compiled(pattern)
    except ValueError:
        return False
    return True


def rank_of(module: str, settings: LoraSettings) -> int:
    """The rank that the settings state for a module."""
    return next(iter(matching(module, settings.rank_pattern)), settings.r)


def alpha_of(module: str, settings: LoraSettings) -> int | float:
    """The alpha that the settings state for a module."""
    return next(iter(matching(module, settings.alpha_pattern)), settings.alpha)


def scale_of(module: str, settings: LoraSettings, rank: int) -> float:
    """What B @ A is multiplied with: alpha / rank, or alpha / sqrt(rank) for rsLoRA (arXiv 2312.03732)."""
    return alpha_of(module, settings) / (math.sqrt(rank) if settings.use_rslora else rank)


def selects(targets: str | Collection[str], module: str) -> bool:
    """Whether `target_modules` (or `exclude_modules`) names a module.

    Source: peft's `check_target_module_exists`: a string is a regular expression for the whole name, a list holds whole
    names and their ends. A set is looked into instead of being searched.

    Raises:
        UnsupportedLora: the regular expression is of a kind that is not matched here, or takes too long.
    """
    if isinstance(targets, str):
        return targets == ALL_LINEAR or len(module) in _ends(targets, module, {0})
    return any(end in targets for end in ends_at_dots(module))


def starts_at_dots(name: str) -> list[str]:
    """All that precedes one of a name's dots: the modules that it is in."""
    return [name[: dot.start()] for dot in re.finditer(r"\.", name)]


def ends_at_dots(name: str) -> list[str]:
    """A name and all that follows one of its dots."""
    return [name, *(name[dot.end() :] for dot in re.finditer(r"\.", name))]


@dataclass(frozen=True, slots=True)
class Words:
    """Words that names may end in, at a dot or anywhere: however many there are, a name is looked at once a length."""

    words: frozenset[str]
    lengths: tuple[int, ...]

    def ending(self, name: str) -> Iterator[str]:
        """Those that `name` ends in."""
        for length in self.lengths:
            if length > len(name):
                return
            if (end := name[len(name) - length :]) in self.words:
                yield end


def words_of(words: Iterable[str]) -> Words:
    """Words to look for, each once."""
    found = frozenset(words)
    return Words(found, tuple(sorted({len(word) for word in found})))
