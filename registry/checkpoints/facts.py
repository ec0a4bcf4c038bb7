"""What a checkpoint and its run's config state beside tensors: r, alpha, run, base, parents. Read, never guessed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from registry.checkpoints.pickled import Inert
from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, MalformedFile, MissingAlpha, NotFound, UnsupportedLora, shown
from registry.core.model import LoraSettings, number
from registry.core.patterns import MAX_KEYS, is_usable, matching
from registry.disk import read_small

T = TypeVar("T")
_ITERATION_DIRECTORY = re.compile(r"iter-(\d+)")
CHECKPOINTS_DIRECTORIES = ("ckpt", "checkpoints")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A run's config.json; `data` is empty and `digest` None where the run has none."""

    path: str
    data: Mapping[str, Any]
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class Source:
    """A mapping that may state facts, and how messages call it."""

    name: str
    data: Mapping[str, Any]


def read_run_config(checkpoint: str) -> RunConfig:
    """The config of the run that a checkpoint directory belongs to, by the layout RUN_DIR/ckpt/iter-<n>/.

    Raises:
        MalformedFile: it exists but is no JSON object.
    """
    real = os.path.realpath(checkpoint)
    parent = os.path.dirname(real)
    if os.path.basename(parent) not in CHECKPOINTS_DIRECTORIES:
        return RunConfig("", {}, None)
    path = os.path.join(os.path.dirname(parent), "config.json")
    try:
        data = read_small(path)
    except NotFound:
        return RunConfig(path, {}, None)
    stated = jsontext.parse(data, path)
    if not isinstance(stated, dict):
        raise MalformedFile("not a JSON object", path=path, found=type(stated).__name__)
    return RunConfig(path, stated, Digest(hashlib.sha256(data).hexdigest()))


def directory_iteration(checkpoint: str) -> int | None:
    """The iteration that a checkpoint directory's name states."""
    match = _ITERATION_DIRECTORY.fullmatch(os.path.basename(os.path.realpath(checkpoint)))
    return whole(int(match[1])) if match else None


def iteration_directories(directory: str) -> Iterator[tuple[str, int]]:
    """What is below a directory and is called as an iteration, with its number, in no order; none where nothing can be
    listed."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                match = _ITERATION_DIRECTORY.fullmatch(entry.name)
                number = whole(int(match[1])) if match else None
                if number is not None:
                    yield entry.path, number
    except OSError:
        return


def served_directory(checkpoint: str) -> str | None:
    """Where the run of RUN_DIR/ckpt/iter-<n>/ says what its engines were served: RUN_DIR/served/iter-<n>/."""
    checkpoints, name = os.path.split(os.path.realpath(checkpoint))
    path = os.path.join(os.path.dirname(checkpoints), "served", name)
    return path if _ITERATION_DIRECTORY.fullmatch(name) and os.path.isdir(path) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, of whatever class, else an empty one."""
    if isinstance(value, Inert):
        return value.items_
    return value if isinstance(value, Mapping) else {}


def text(value: Any) -> str | None:
    """`value` if it is text with something in it, else None."""
    return value if isinstance(value, str) and value.strip() else None


def digest(value: Any) -> Digest | None:
    """`value` if it is a digest, else None."""
    try:
        return Digest.parse(value) if isinstance(value, str) else None
    except InvalidReference:
        return None


def whole(value: Any) -> int | None:
    """`value` if it is a whole number that is not negative, else None."""
    found = number(value)
    return found if isinstance(found, int) and found >= 0 else None


def lora_settings(
    sources: list[Source], shapes: Mapping[str, int], alpha_option: float | None, path: str
) -> tuple[LoraSettings, str]:
    """The settings, and which source gave alpha.

    Args:
        sources: the checkpoint's and the config's `lora` mappings, in order of precedence.
        shapes: module name to the rank its tensors have.
        alpha_option: what the user said.
        path: the file that messages name.

    Raises:
        MissingAlpha: nobody states alpha.
        UnsupportedLora: sources disagree, a value is of the wrong kind, r and shapes disagree, or a setting that the
            export cannot carry is on.
    """
    _refuse_unsupported(sources, path)
    rank_pattern = _agreed(sources, ("rank_pattern",), _pattern(_rank), path)[0] or ()
    r = _agreed(sources, ("r", "rank", "lora_r"), _rank, path)[0]
    alpha, where = _alpha(sources, alpha_option, path)
    alpha_pattern = _agreed(sources, ("alpha_pattern",), _pattern(_alpha_value), path)[0] or ()
    _refuse_order_dependence({"rank_pattern": rank_pattern, "alpha_pattern": alpha_pattern}, shapes, path)
    settings = LoraSettings(
        r=_checked_ranks(r, rank_pattern, shapes, path),
        alpha=alpha,
        use_rslora=_agreed(sources, ("use_rslora", "rslora"), _flag, path)[0] or False,
        rank_pattern=rank_pattern,
        alpha_pattern=alpha_pattern,
        fan_in_fan_out=_agreed(sources, ("fan_in_fan_out",), _flag, path)[0] or False,
    )
    return settings, where


def _alpha(sources: list[Source], option: float | None, path: str) -> tuple[int | float, str]:
    found, where = _agreed(sources, ("alpha", "lora_alpha"), _alpha_value, path)
    if option is not None:
        given = _alpha_value(option)
        if given is None:
            raise UnsupportedLora("alpha must be a finite number other than zero", key="--alpha", found=option)
        if found is not None and given != found:
            raise UnsupportedLora(
                f"alpha is stated in the {where}", path=path, key="--alpha", found=given, expected=found
            )
        if found is None:
            return given, "option"
    if found is None:
        looked = ", ".join(f"{source.name} (alpha, lora_alpha)" for source in sources)
        raise MissingAlpha("alpha is stated nowhere", path=path, found=f"none in {looked}", hint="Give it with --alpha")
    return found, where


def _checked_ranks(
    stated: int | None, pattern: tuple[tuple[str, int], ...], shapes: Mapping[str, int], path: str
) -> int:
    r = stated
    if r is None:
        ranks = sorted(set(shapes.values()))
        if len(ranks) > 1:
            raise UnsupportedLora("ranks differ and r is stated nowhere", path=path, found=ranks)
        r = ranks[0]
    for module, rank in shapes.items():
        expected = next(iter(matching(module, pattern)), r)
        if rank != expected:
            raise UnsupportedLora(
                "the tensors' rank is not the stated one", path=path, key=module, found=rank, expected=expected
            )
    return r


def _refuse_order_dependence(
    patterns: Mapping[str, tuple[tuple[str, Any], ...]], shapes: Mapping[str, int], path: str
) -> None:
    """The first key that matches counts for peft, but canonical JSON sorts keys: so all must mean the same."""
    for name, pattern in patterns.items():
        for module in shapes:
            values = matching(module, pattern)
            if len(set(values)) > 1:
                raise UnsupportedLora(
                    f"several keys of {name} match one module",
                    path=path,
                    key=module,
                    found=values,
                    expected="one value",
                )


def _agreed(
    sources: list[Source], keys: tuple[str, ...], convert: Callable[[Any], T | None], path: str
) -> tuple[T | None, str]:
    """The value under any of `keys`, from the first source that has one; all that have one must agree."""
    stated = [
        (source.name, key, source.data[key]) for source in sources for key in keys if source.data.get(key) is not None
    ]
    result: tuple[T | None, str] = (None, "")
    for name, key, value in stated:
        converted = convert(value)
        if converted is None:
            raise UnsupportedLora("not a usable value", path=path, key=f"{name}.{key}", found=shown(value))
        if result[0] is None:
            result = (converted, name.partition(" ")[0])
        elif converted != result[0]:
            raise UnsupportedLora(
                "sources disagree",
                path=path,
                key=f"{name}.{key}",
                found=converted,
                expected=f"{result[0]} ({result[1]})",
            )
    return result


def _rank(value: Any) -> int | None:
    found = number(value)
    return found if isinstance(found, int) and found > 0 else None


def _alpha_value(value: Any) -> int | float | None:
    found = number(value)
    return found or None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _pattern(convert: Callable[[Any], T | None]) -> Callable[[Any], tuple[tuple[str, T], ...] | None]:
    def converted(value: Any) -> tuple[tuple[str, T], ...] | None:
        if not isinstance(value, Mapping) or len(value) > MAX_KEYS:
            return None
        pairs = []
        for key, item in value.items():
            result = convert(item)
            if not isinstance(key, str) or result is None or not is_usable(key):
                return None
            pairs.append((key, result))
        return tuple(sorted(pairs))

    return converted


def _refuse_unsupported(sources: list[Source], path: str) -> None:
    harmless: dict[str, tuple[Any, ...]] = {"use_dora": (False,), "bias": ("none", False), "modules_to_save": ([], ())}
    for source in sources:
        for key, allowed in harmless.items():
            value = source.data.get(key)
            if value is not None and value not in allowed:
                raise UnsupportedLora(
                    "the checkpoint's tensors do not hold what this setting adds",
                    path=path,
                    key=f"{source.name}.{key}",
                    found=shown(value),
                )
