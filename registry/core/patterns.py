"""Which settings hold for which module: rank, alpha and scale by name or pattern, resolved as peft resolves them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import TypeVar

from registry.core.model import LoraSettings

T = TypeVar("T")
ALL_LINEAR = "all-linear"
_QUANTIFIED_GROUP = re.compile(r"\)[*+?{]")
_UNLIMITED = re.compile(r"[*+]|\{\d*,\}")
_MOST_UNLIMITED = 2
_MOST_IN_TARGETS = 8  # people write long ones, and match them against names of a few dozen characters
_REPEATED_GROUP = re.compile(r"\)[*+{]")


def matching(module: str, pattern: tuple[tuple[str, T], ...]) -> list[T]:
    r"""The values of all keys that match a module's name or its end; the first one counts.

    Source: peft's `get_pattern_key`, `re.match(rf"(.*\.)?({key})$", module)`.
    """
    return [value for key, value in pattern if re.match(ends_with(key), module)]


def ends_with(key: str) -> str:
    """The regular expression that a pattern's key stands for."""
    return rf"(.*\.)?({key})$"


def is_usable(key: str) -> bool:
    """Whether a pattern's key is printable, a regular expression, and one that cannot take exponential time to match.

    The last rules out quantified groups, and more than two quantifiers without a limit.
    """
    if not key.isprintable() or _QUANTIFIED_GROUP.search(key) or len(_UNLIMITED.findall(key)) > _MOST_UNLIMITED:
        return False
    try:
        re.compile(ends_with(key))
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def is_usable_target(pattern: str) -> bool:
    """Whether `target_modules`, where it is a regular expression, is one, and cannot take exponential time to match."""
    if _REPEATED_GROUP.search(pattern) or len(_UNLIMITED.findall(pattern)) > _MOST_IN_TARGETS:
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
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
    names and their ends.
    """
    if isinstance(targets, str):
        return targets == ALL_LINEAR or re.fullmatch(targets, module) is not None
    return any(module == target or module.endswith(f".{target}") for target in targets)
