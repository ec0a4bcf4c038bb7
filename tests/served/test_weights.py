"""A model's files are opened as one only where its index and their tensors agree, tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from registry.core.errors import MalformedFile
from registry.served.weights import INDEX, open_weights
from tests.support.serving import save_state

ONE, TWO = "one.safetensors", "two.safetensors"


def sharded(directory: Path, weight_map: dict[str, str]) -> str:
    """`a` in one shard and `b` in another, with this index."""
    save_state(directory / ONE, {"a": torch.ones(4)})
    save_state(directory / TWO, {"b": torch.ones(3)})
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return str(directory)


def test_shards_that_are_as_the_index_says_are_one_model(tmp_path: Path) -> None:
    save_state(tmp_path / "other.safetensors", {"c": torch.ones(1)})
    with open_weights(sharded(tmp_path, {"a": ONE, "b": TWO})) as weights:
        assert sorted(weights.tensors) == ["a", "b"]
        assert [Path(file).name for file in weights.files] == [ONE, TWO]


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"a": ONE, "b": TWO, "lost": TWO}, r"lost: no shard has this tensor.*two\.safetensors"),
        ({"a": TWO, "b": ONE}, r"a: in another shard.*found one\.safetensors; expected two\.safetensors"),
    ],
)
def test_a_tensor_that_is_not_where_the_index_says_is_named(
    tmp_path: Path, weight_map: dict[str, str], named: str
) -> None:
    with pytest.raises(MalformedFile, match=named) as caught, open_weights(sharded(tmp_path, weight_map)):
        pass
    assert caught.value.path == str(tmp_path / INDEX)


def test_a_tensor_that_the_index_does_not_list_is_named(tmp_path: Path) -> None:
    directory = sharded(tmp_path, {"a": ONE, "b": TWO})
    save_state(tmp_path / TWO, {"b": torch.ones(3), "extra": torch.ones(1)})
    with pytest.raises(MalformedFile, match=r"extra: the index does not list this.*two"), open_weights(directory):
        pass
