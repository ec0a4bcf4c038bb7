"""adapter_config.json, read: the settings that decide the function, and those that this project cannot follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from registry.core import jsontext
from registry.core.errors import MalformedFile, MissingAlpha, UnsupportedLora, shown
from registry.core.model import CONFIG, LoraSettings, number
from registry.core.patterns import is_usable

T = TypeVar("T")
# fmt: off
_FOLLOWED = frozenset(
    {
        "alpha_pattern", "bias", "exclude_modules", "fan_in_fan_out", "init_lora_weights", "lora_alpha",
        "lora_bias", "modules_to_save", "peft_type", "r", "rank_pattern", "target_modules", "target_parameters",
        "use_dora", "use_rslora",
    }
)
_INDIFFERENT = frozenset(  # to the merged function: training, provenance, how a base is prepared or split
    {
        "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
        "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout",
        "lora_ga_config", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config",
        "task_type",
    }
)
# fmt: on
_RESIDUAL = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")
_TYPES: dict[str, tuple[type, ...]] = {
    "bias": (str,),
    "modules_to_save": (list,),
    "target_modules": (list, str),
    "exclude_modules": (list, str),
    "target_parameters": (list,),
    "use_dora": (bool,),
}


def read_config(data: bytes) -> dict[str, Any]:
    """The config as a mapping, its strings and lists checked to be such.

    Raises:
        MalformedFile: not a JSON object, or a value of the wrong kind.
        UnsupportedLora: not of a LoRA.
    """
    config = jsontext.parse(data, CONFIG)
    if not isinstance(config, dict):
        raise MalformedFile("not a JSON object", path=CONFIG, found=type(config).__name__)
    if config.get("peft_type") != "LORA":
        raise UnsupportedLora("not a LoRA", path=CONFIG, key="peft_type", found=shown(config.get("peft_type")))
    for key, kinds in _TYPES.items():
        value = config.get(key)
        listed = value if isinstance(value, list) else ()
        if (value is not None and not isinstance(value, kinds)) or not all(isinstance(each, str) for each in listed):
            raise MalformedFile("not a usable value", path=CONFIG, key=key, found=shown(value))
    for key in ("target_modules", "exclude_modules"):
        if isinstance(config.get(key), str) and not _compiles(config[key]):
            raise MalformedFile("not a regular expression", path=CONFIG, key=key, found=shown(config[key]))
    return config


def read_settings(config: Mapping[str, Any]) -> LoraSettings:
    """The settings, with patterns in the config's own order, which counts.

    Raises:
        MissingAlpha: lora_alpha is not stated.
        UnsupportedLora: r is not stated, or a value is not usable (alpha 0 among them).
    """
    if config.get("lora_alpha") is None:
        raise MissingAlpha("lora_alpha is not stated", path=CONFIG, hint="Without it nothing says how strong this is")
    return LoraSettings(
        r=_value(config, "r", _rank),
        alpha=_value(config, "lora_alpha", _alpha),
        use_rslora=_value(config, "use_rslora", _flag),
        rank_pattern=_pattern(config, "rank_pattern", _rank),
        alpha_pattern=_pattern(config, "alpha_pattern", _alpha),
        fan_in_fan_out=_value(config, "fan_in_fan_out", _flag),
    )


def unsupported_settings(config: Mapping[str, Any]) -> list[str]:
    """The settings that are on and that change the function in a way that merging here does not follow, each named.

    A setting that this version has never heard of counts as one.
    """
    found = [
        f"{key}: {shown(value)}"
        for key, value in sorted(config.items())
        if value and key not in _FOLLOWED and key not in _INDIFFERENT
    ]
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_RESIDUAL):
        found.append(f"init_lora_weights: {start} (relative to a changed base)")
    return found


def _value(config: Mapping[str, Any], key: str, convert: Callable[[Any], T | None]) -> T:
    converted = convert(config.get(key))
    if converted is None:
        raise UnsupportedLora("not a usable value", path=CONFIG, key=key, found=shown(config.get(key)))
    return converted


def _pattern(config: Mapping[str, Any], key: str, convert: Callable[[Any], T | None]) -> tuple[tuple[str, T], ...]:
    stated = config.get(key) or {}
    if not isinstance(stated, dict) or not all(is_usable(name) for name in stated):
        raise UnsupportedLora("not a map from patterns to numbers", path=CONFIG, key=key, found=shown(stated))
    return tuple((name, _value(stated, name, convert)) for name in stated)


def _rank(value: Any) -> int | None:
    found = number(value)
    return found if isinstance(found, int) and found > 0 else None


def _alpha(value: Any) -> int | float | None:
    return number(value) or None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else False if value is None else None


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True
