"""What the tensors and the config of a PEFT adapter mean, as peft saves and loads them.

Pure: where the bytes come from is the caller's affair. What this project cannot merge is named in the result; what
contradicts itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from registry.core.contents import AdapterContents
from registry.core.dtypes import LORA_DTYPES
from registry.core.errors import MalformedFile, UnsupportedLora
from registry.core.layout import CONFIG
from registry.core.model import PEFT_PREFIX, Lora, LoraPair, LoraSettings
from registry.core.patterns import Words, rank_of, selects, starts_at_dots, words_of
from registry.core.peft_config import read_config, read_settings, unsupported_settings
from registry.core.tensor import Tensor

_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.default)?(?:\.(?P<leaf>weight|bias))?"
)
_WRAPPER = re.compile(r"\.(?:base_layer|modules_to_save(?:\.default)?|original_module)\.(?=[^.]+$)")
_EMBEDDINGS = frozenset({"embed_tokens", "lm_head"})  # peft's EMBEDDING_LAYER_NAMES, which it saves unasked
_TOKENS = ".token_adapter."
_MATRIX = 2
NOT_SELECTED = "target_modules does not select"


@dataclass(slots=True)
class _Sorted:
    """The file's tensors by what they are for, each by module or, where they replace one, by tensor name."""

    parts: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    replaced: dict[str, Tensor] = field(default_factory=dict)
    biases: dict[str, Tensor] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def part(self, name: str) -> dict[str, Tensor]:
        return self.parts.setdefault(name, {})


def decode(tensors: Mapping[str, Tensor], config: bytes, path: str, config_path: str = CONFIG) -> AdapterContents:
    """Understand an adapter.

    Args:
        tensors: all of them by the key that they are stored under.
        config: the text of adapter_config.json.
        path: the file of the tensors, for messages.
        config_path: the file of the config, for messages.

    Raises:
        MalformedFile: one of the two is damaged, or two keys mean one tensor.
        MissingAlpha: the config states no lora_alpha; peft's own default is not taken.
        UnsupportedLora: factors without their other half or of a rank that the config does not state, DoRA in the
            config or in the tensors only, no LoRA at all.
    """
    stated = read_config(config, config_path)
    settings = read_settings(stated, config_path)
    found = _sort(tensors, stated, path)
    packed = _packed(stated, found)
    pairs = tuple(_pairs(found, "lora_A", "lora_B", settings, path, packed))
    embeddings = tuple(_pairs(found, "lora_embedding_A", "lora_embedding_B", settings, path, frozenset()))
    if not pairs and not embeddings and not packed:
        raise UnsupportedLora("no LoRA tensors", path=path, found=f"{len(found.unknown)} other keys")
    magnitudes = found.part("lora_magnitude_vector")
    _require_magnitudes(stated.get("use_dora") is True, magnitudes, (*pairs, *embeddings), path)
    _require_lora_bias(stated.get("lora_bias") is True, found.part("lora_B.bias"), path)
    beside = [f"tensor {key}" for key in found.unknown if _TOKENS in key]
    return AdapterContents(
        lora=Lora(settings, pairs),
        config=stated,
        embeddings=embeddings,
        magnitudes=magnitudes,
        lora_biases=found.part("lora_B.bias"),
        replaced=found.replaced,
        biases=found.biases,
        packed={
            f"{module}.{part}": tensor
            for part in ("lora_A", "lora_B")
            for module, tensor in found.part(part).items()
            if module in packed
        },
        rest={key.removeprefix(PEFT_PREFIX): tensors[key] for key in found.unknown},
        unknown=tuple(key for key in found.unknown if _TOKENS not in key),
        unsupported=(
            *unsupported_settings(stated),
            *beside,
            *(f"target_parameters: {module}" for module in sorted(packed)),
            *(f"{NOT_SELECTED} {name}" for name in _unselected((*pairs, *embeddings), stated)),
        ),
    )


def _sort(tensors: Mapping[str, Tensor], config: Mapping[str, Any], path: str) -> _Sorted:
    found = _Sorted()
    saved = words_of(config.get("modules_to_save") or ())
    for key, tensor in sorted(tensors.items()):
        name = key.removeprefix(PEFT_PREFIX)
        match = _PART.fullmatch(name)
        if match is not None:
            part = "lora_B.bias" if match["leaf"] == "bias" else match["part"]
            group, name = found.part(part), match["module"]
        else:
            plain = _WRAPPER.sub(".", name)
            place = _place(name, plain, config, saved)
            if place is None:
                found.unknown.append(key)
                continue
            group, name = getattr(found, place), plain
        if name in group:
            raise MalformedFile("two keys for one tensor", path=path, key=key)
        group[name] = tensor
    return found


def _place(name: str, plain: str, config: Mapping[str, Any], saved: Words) -> str | None:
    """Where a tensor that is no part of a LoRA belongs: peft loads it in place of the base's tensor of this name."""
    module, _, leaf = plain.rpartition(".")
    if leaf == "bias" and config.get("bias", "none") != "none":
        return "biases"
    parents = starts_at_dots(plain)
    if any(True for parent in parents for _ in saved.ending(parent)):  # peft matches the bare end of a name
        return "replaced"
    embedding = leaf == "weight" and module.rpartition(".")[2] in _EMBEDDINGS
    return "replaced" if embedding or ".base_layer." in name else None


def _packed(config: Mapping[str, Any], found: _Sorted) -> frozenset[str]:
    """The modules whose factors peft packed for a parameter (all experts in one matrix), not for a layer."""
    owners = {str(name).rpartition(".")[0] for name in config.get("target_parameters") or ()}
    modules = {*found.part("lora_A"), *found.part("lora_B")}
    return frozenset(module for module in modules if owners and selects(owners, module.replace(".base_layer", "")))


def _pairs(  # the two dictionaries of factors, joined by module
    found: _Sorted, a_name: str, b_name: str, settings: LoraSettings, path: str, skip: frozenset[str]
) -> Iterable[LoraPair]:
    a_of, b_of = found.part(a_name), found.part(b_name)
    for module in sorted({*a_of, *b_of} - skip):
        if module not in a_of or module not in b_of:
            missing = a_name if module not in a_of else b_name
            raise UnsupportedLora("one factor without the other", path=path, key=module, expected=f"also {missing}")
        pair = LoraPair(module, a_of[module], b_of[module])
        _require_sound(pair, rank_of(module, settings), path)
        yield pair


def _require_sound(pair: LoraPair, rank: int, path: str) -> None:
    for tensor in (pair.a, pair.b):
        if len(tensor.shape) < _MATRIX or tensor.numel == 0:
            raise UnsupportedLora(
                "an empty or flat factor; was it saved from one shard?",
                path=path,
                key=pair.module,
                found=list(tensor.shape),
            )
        if len(tensor.shape) > _MATRIX:
            raise UnsupportedLora(
                "not the factor of a linear layer (a convolution?)",
                path=path,
                key=pair.module,
                found=list(tensor.shape),
            )
        if tensor.dtype not in LORA_DTYPES:
            raise UnsupportedLora("not a floating-point type", path=path, key=pair.module, found=tensor.dtype)
    if pair.a.shape[0] != rank or pair.b.shape[1] != rank:
        raise UnsupportedLora(
            "the tensors' rank is not the stated one",
            path=path,
            key=pair.module,
            found=f"A {list(pair.a.shape)}, B {list(pair.b.shape)}",
            expected=rank,
        )


def _require_magnitudes(use_dora: bool, magnitudes: Mapping[str, Tensor], pairs: Iterable[LoraPair], path: str) -> None:
    if not use_dora and magnitudes:
        raise UnsupportedLora(
            "DoRA's magnitudes, but the config says use_dora: false", path=path, key=next(iter(magnitudes))
        )
    shapes = {pair.module: (pair.b.shape[0],) for pair in pairs} if use_dora else {}
    for module in sorted(shapes.keys() | magnitudes.keys()):
        found = magnitudes.get(module)
        expected = shapes.get(module)
        if found is None or found.shape != expected:
            raise UnsupportedLora(
                "not DoRA's magnitude vector of this module",
                path=path,
                key=module,
                found="none" if found is None else list(found.shape),
                expected="none" if expected is None else list(expected),
            )


def _require_lora_bias(lora_bias: bool, biases: Mapping[str, Tensor], path: str) -> None:
    if biases and not lora_bias:
        raise UnsupportedLora(
            "biases of lora_B, but the config says lora_bias: false", path=path, key=next(iter(biases))
        )


def _unselected(pairs: Iterable[LoraPair], config: Mapping[str, Any]) -> list[str]:
    """Modules that have tensors and that peft, going by the config, would leave alone without a word."""
    targets, excluded = _as_set(config.get("target_modules")), _as_set(config.get("exclude_modules") or ())
    if targets is None:
        return []
    tied = _EMBEDDINGS if config.get("ensure_weight_tying") else frozenset()  # selecting one selects the other too
    return [
        pair.module
        for pair in pairs
        if (not selects(targets, pair.module) or selects(excluded, pair.module))
        and pair.module.rpartition(".")[2] not in tied
    ]


def _as_set(targets: Any) -> Any:
    return frozenset(targets) if isinstance(targets, list) else targets
