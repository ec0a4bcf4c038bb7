"""The keys of a PEFT adapter as peft itself writes them and engines look for them: what was put around them goes, and
is recorded. Names only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from registry.checkpoints.wrappers import ANYWHERE, without_outermost, without_wrappers
from registry.core.errors import MalformedFile, UnsupportedLora, shown
from registry.core.model import PEFT_PREFIX

_ROOTS = frozenset({"module", "model", "model_state", "model_state_dict", "state_dict", "policy", "actor"})
"""What may stand before `base_model.model.`. Of anything else nobody knows whether it tells two models apart."""

_STATE_ROOTS = ("model_state.", "model_state_dict.", "state_dict.")
_LEAF = re.compile(
    r"\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?P<adapter>\.default)?(?P<leaf>\.(?:weight|bias))?"
)
_SAVED = re.compile(r"\.modules_to_save(?:\.default)?(?=\.[^.]+$)")
_WRAPPED_TARGET = re.compile(rf"(?:{'|'.join(ANYWHERE)})\\?\.")
_TARGETS = ("target_modules", "exclude_modules", "modules_to_save", "target_parameters")
_PATTERNS = ("rank_pattern", "alpha_pattern")
_LONGEST = 1024


@dataclass(frozen=True, slots=True)
class Renamed:
    """Keys as they are to be.

    Attributes:
        names: found to wanted.
        stripped: what was removed, sorted.
        changes: what was done, a sentence each; empty where every key was right.
    """

    names: dict[str, str]
    stripped: tuple[str, ...]
    changes: tuple[str, ...]


def rename(keys: Iterable[str], path: str) -> Renamed:
    """Give every key the form that peft writes: `base_model.model.<module>.lora_A.weight` and the like.

    Raises:
        MalformedFile: two keys mean one tensor.
        UnsupportedLora: a key that can be none, of an unknown root, or a LoRA tensor of a second adapter.
    """
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    removed: Counter[str] = Counter()
    bare = 0
    for key in sorted(keys):
        _require_name(key, path)
        name, gone, had_prefix = _renamed(key, path)
        if name in taken:
            raise MalformedFile("two keys for one tensor", path=path, key=key, found=taken[name])
        names[key], taken[name] = name, key
        removed.update(gone)
        bare += not had_prefix
    changes = [f"removed {part!r} from {count} keys" for part, count in sorted(removed.items())]
    if bare:
        changes.append(f"put {PEFT_PREFIX!r} before {bare} keys")
    return Renamed(names, tuple(sorted(removed)), tuple(changes))


def renamed_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config of an adapter whose keys were renamed: names in it lose the same wrappers. Everything else is kept."""
    changed = dict(config)
    for key in _TARGETS:
        value = config.get(key)
        if isinstance(value, str):
            changed[key] = _WRAPPED_TARGET.sub("", value)
        elif isinstance(value, list):
            changed[key] = list(dict.fromkeys(_WRAPPED_TARGET.sub("", each) for each in value))
    for key in _PATTERNS:
        value = config.get(key)
        if isinstance(value, dict):
            changed[key] = {_WRAPPED_TARGET.sub("", name): each for name, each in value.items()}
    return changed


def _require_name(key: str, path: str) -> None:
    if not key.isprintable() or len(key) > _LONGEST or any(not part or part.isspace() for part in key.split(".")):
        raise UnsupportedLora("not the name of a tensor", path=path, key=shown(key))


def _renamed(key: str, path: str) -> tuple[str, set[str], bool]:
    """The key as it is to be, what was removed, and whether it had peft's prefix."""
    name, removed = without_wrappers(key)
    before, found, rest = f".{name}".partition(f".{PEFT_PREFIX}")
    if found:
        roots = before.removeprefix(".")
        if roots and not _ROOTS.issuperset(roots.split(".")):
            raise UnsupportedLora(
                "keys of an unknown root",
                path=path,
                key=key,
                found=roots,
                expected=f"{PEFT_PREFIX} at the start, or after any of {', '.join(sorted(_ROOTS))}",
            )
        removed |= {f"{roots}."} if roots else set()
    else:
        rest = name
        for root in _STATE_ROOTS:
            if rest.startswith(root):
                rest = rest.removeprefix(root)
                removed.add(root)
    rest, outermost = without_outermost(rest)
    rest, default = _without_adapter(rest, key, path)
    if not rest:
        raise UnsupportedLora("not the name of a tensor", path=path, key=key)
    return f"{PEFT_PREFIX}{rest}", removed | outermost | default, bool(found)


def _without_adapter(name: str, key: str, path: str) -> tuple[str, set[str]]:
    """The name without the adapter's own, which peft leaves out when it saves."""
    if ".lora_" in name:
        match = _LEAF.search(name)
        if match is None or match.end() != len(name):
            raise UnsupportedLora(
                "not a tensor of one LoRA adapter",
                path=path,
                key=key,
                expected="keys that end in .lora_A.weight, .lora_B.weight and what else peft saves for a LoRA",
            )
        if match["adapter"]:
            return f"{name[: match.start('adapter')]}{match['leaf'] or ''}", {"default."}
        return name, set()
    plain = _SAVED.sub("", name)
    return plain, ({"modules_to_save."} if plain != name else set())
