"""Tied weights: one matrix that a model uses as its input embedding and as its output head."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from registry.core import jsontext
from registry.core.errors import MalformedFile, NotFound
from registry.disk import read_small

CONFIG = "config.json"
FLAG = "tie_word_embeddings"
_TEXT = "vocab_size"  # what the config of a language model within a larger one has
_HEADS = {"embed_tokens": "lm_head", "wte": "lm_head", "word_embeddings": "lm_head", "embed_in": "embed_out"}


@dataclass(frozen=True, slots=True)
class Tie:
    """The names of a base's embedding and of its output head, which share one matrix.

    Only the embedding need be in the files. A merge that changes either must store both, and say in config.json that
    they are no longer tied: changing one through the other would change the function.
    """

    embedding: str
    head: str


def read_config(path: str) -> dict[str, Any]:
    """The config.json of a base (its directory, or a file in it); empty where there is none.

    Raises:
        MalformedFile: no JSON object.
    """
    file = os.path.join(path if os.path.isdir(path) else os.path.dirname(path), CONFIG)
    try:
        data = read_small(file)
    except NotFound:
        return {}
    config = jsontext.parse(data, file)
    if not isinstance(config, dict):
        raise MalformedFile("not a JSON object", path=file)
    return config


def find_tie(tensors: Collection[str], config: Mapping[str, Any]) -> Tie | None:
    """The tie of a base, if it has one: its config says so, or says nothing of it while no head is stored.

    Older configs leave out a flag that equals its model's default. With no head stored that must be true: there would
    be nothing to take the head from.

    Args:
        tensors: all tensor names of the base.
        config: its config.json; an empty one tells of no model, and so of no tie.
    """
    stated = [level[FLAG] for level in _levels(config) if FLAG in level]
    if not any(each is True for each in stated) and (stated or not config):
        return None
    for name in sorted(tensors):
        module = name.removesuffix(".weight")
        head = _HEADS.get(module.rpartition(".")[2])
        if head is not None and module != name:
            stored = next((each for each in sorted(tensors) if f".{each}".endswith(f".{head}.weight")), None)
            return None if stored and not stated else Tie(name, stored or f"{head}.weight")
    return None


def untied(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the same model with its embedding and its head apart."""
    if any(FLAG in level for level in _levels(config)):
        return _set_apart(config)
    texts = {key: {**each, FLAG: False} for key, each in config.items() if isinstance(each, Mapping) and _TEXT in each}
    return {**config, **texts, FLAG: False}


def _set_apart(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _set_apart(value) if isinstance(value, Mapping) else False if key == FLAG else value
        for key, value in config.items()
    }


def _levels(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [config, *(value for value in config.values() if isinstance(value, Mapping))]
