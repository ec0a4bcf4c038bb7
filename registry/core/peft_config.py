"""adapter_config.json, read: the settings that decide the function, and those that this project cannot follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from registry.core import jsontext
from registry.core.errors import MalformedFile, MissingAlpha, UnsupportedLora, shown
from registry.core.layout import CONFIG
from registry.core.model import LoraSettings, number
from registry.core.patterns import MAX_KEYS, is_usable, is_usable_target

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
_QUANTISED = re.compile(r"-(?:bnb-)?[48]bit", re.IGNORECASE)
_RESIDUAL = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")
_TYPES: dict[str, tuple[type, ...]] = {
    "bias": (str,),
    "modules_to_save": (list,),
    "target_modules": (list, str),
    "exclude_modules": (list, str),
    "target_parameters": (list,),
    "use_dora": (bool,),
}


def read_config(data: bytes, path: str = CONFIG) -> dict[str, Any]:
    """The config as a mapping, its strings and lists checked to be such; `path` is for messages.

    Raises:
        MalformedFile: not a JSON object, or a value of the wrong kind.
        UnsupportedLora: not of a LoRA.
    """
    config = jsontext.parse(data, path)
    if not isinstance(config, dict):
        raise MalformedFile("not a JSON object", path=path, found=type(config).__name__)
    if config.get("peft_type") != "LORA":
        raise UnsupportedLora("not a LoRA", path=path, key="peft_type", found=shown(config.get("peft_type")))
    for key, kinds in _TYPES.items():
        value = config.get(key)
        listed = value if isinstance(value, list) else ()
        if (value is not None and not isinstance(value, kinds)) or not all(isinstance(each, str) for each in listed):
            raise MalformedFile("not a usable value", path=path, key=key, found=shown(value))
    for key in ("target_modules", "exclude_modules"):
        if isinstance(config.get(key), str) and not is_usable_target(config[key]):
            raise MalformedFile(
                "not a regular expression of a kind that is matched here",
                path=path,
                key=key,
                found=shown(config[key]),
            )
    return config


def read_settings(config: Mapping[str, Any], path: str = CONFIG) -> LoraSettings:
    """The settings, with patterns in the config's own order, which counts.

    Raises:
        MissingAlpha: lora_alpha is not stated.
        UnsupportedLora: r is not stated, or a value is not usable (alpha 0 among them).
    """
    if config.get("lora_alpha") is None:
        raise MissingAlpha("lora_alpha is not stated", path=path, hint="Without it nothing says how strong this is")
    return LoraSettings(
        r=_value(config, "r", _rank, path),
        alpha=_value(config, "lora_alpha", _alpha, path),
        use_rslora=_value(config, "use_rslora", _flag, path),
        rank_pattern=_pattern(config, "rank_pattern", _rank, path),
        alpha_pattern=_pattern(config, "alpha_pattern", _alpha, path),
        fan_in_fan_out=_value(config, "fan_in_fan_out", _flag, path),
    )


def unsupported_settings(config: Mapping[str, Any]) -> list[str]:
    """The settings that are on and that change the function in a way that merging here does not follow, each named.

    A setting that this version has never heard of counts as one.
    """
    found = [f"{key}: {shown(value)}" for key, value in sorted(beyond(config).items())]
    if is_residual(config):
        found.append(f"init_lora_weights: {config['init_lora_weights']} (relative to a changed base)")
    return found


def is_residual(config: Mapping[str, Any]) -> bool:
    """Whether the adapter is relative to what its initialisation left of the base, and not to the base."""
    start = config.get("init_lora_weights")
    return isinstance(start, str) and start.lower().startswith(_RESIDUAL)


def is_quantised(base: str) -> bool:
    """Whether a base's name says that its weights are quantised, as in `...-bnb-4bit`."""
    return _QUANTISED.search(base) is not None


def function(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides, beside the tensors, which function this is: under peft's names, defaults left out.

    For a plain LoRA it is what `LoraSettings.function` says. Which modules are targeted is not in it: the tensors say.
    """
    found = read_settings(config).function() | beyond(config)
    found |= {
        key: config[key] for key in ("use_dora", "lora_bias", "modules_to_save", "target_parameters") if config.get(key)
    }
    if config.get("bias", "none") != "none":
        found["bias"] = config["bias"]
    if is_residual(config):
        found["init_lora_weights"] = config["init_lora_weights"]
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that could change the function and that two configs state differently, as each states them."""
    keys = sorted(key for key in {*one, *other} - _INDIFFERENT if one.get(key) != other.get(key))
    return {key: one.get(key) for key in keys}, {key: other.get(key) for key in keys}


def beyond(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are on and that nothing here knows how to follow."""
    return {key: value for key, value in config.items() if value and key not in _FOLLOWED and key not in _INDIFFERENT}


def _value(config: Mapping[str, Any], key: str, convert: Callable[[Any], T | None], path: str) -> T:
    converted = convert(config.get(key))
    if converted is None:
        raise UnsupportedLora("not a usable value", path=path, key=key, found=shown(config.get(key)))
    return converted


def _pattern(
    config: Mapping[str, Any], key: str, convert: Callable[[Any], T | None], path: str
) -> tuple[tuple[str, T], ...]:
    stated = config.get(key) or {}
    if not isinstance(stated, dict) or len(stated) > MAX_KEYS or not all(is_usable(name) for name in stated):
        raise UnsupportedLora("not a map from patterns to numbers", path=path, key=key, found=shown(stated))
    return tuple((name, _value(stated, name, convert, path)) for name in stated)


def _rank(value: Any) -> int | None:
    found = number(value)
    return found if isinstance(found, int) and found > 0 else None


def _alpha(value: Any) -> int | float | None:
    return number(value) or None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else False if value is None else None
