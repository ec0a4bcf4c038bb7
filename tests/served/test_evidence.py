"""Evidence of what was served is told apart into engines, each named; evidence that says nothing is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.core.errors import MalformedFile, NotFound, RegistryError
from registry.served.evidence import Engine, open_engines
from tests.support.serving import listing_of, save_listing, save_state

ONE, TWO = {"a.weight": torch.ones(4, 2)}, {"b.weight": torch.ones(3)}


def opened(*paths: Path) -> list[Engine]:
    with open_engines([str(path) for path in paths]) as engines:
        return engines


def names(*paths: Path) -> list[str]:
    return [engine.name for engine in opened(*paths)]


def test_a_file_is_an_engine_with_its_name_and_shapes(tmp_path: Path) -> None:
    (engine,) = opened(save_state(tmp_path / "engine-7.safetensors", {**ONE, **TWO}))
    assert engine.name == "engine-7"
    assert engine.shapes == {"a.weight": (4, 2), "b.weight": (3,)}
    assert engine.stated == {}


def test_the_tensors_of_an_open_engine_can_be_read(tmp_path: Path) -> None:
    file = save_state(tmp_path / "e.safetensors", ONE)
    buffer = bytearray(32)
    with open_engines([str(file)]) as (engine,):
        assert engine.weights is not None
        engine.weights.read("a.weight", memoryview(buffer))
    assert torch.equal(torch.frombuffer(buffer, dtype=torch.float32).view(4, 2), ONE["a.weight"])


def test_files_of_distinct_tensors_are_the_shards_of_one_engine(tmp_path: Path) -> None:
    save_state(tmp_path / "iter-3" / "model-00001-of-00002.safetensors", ONE)
    save_state(tmp_path / "iter-3" / "model-00002-of-00002.safetensors", TWO)
    (engine,) = opened(tmp_path / "iter-3")
    assert (engine.name, engine.shapes.keys()) == ("iter-3", ONE.keys() | TWO.keys())


def test_files_that_repeat_a_name_are_an_engine_each(tmp_path: Path) -> None:
    for engine in ("engine-0", "engine-1"):
        save_state(tmp_path / f"{engine}.safetensors", {**ONE, **TWO})
    assert names(tmp_path) == ["engine-0", "engine-1"]
    assert all(engine.shapes.keys() == ONE.keys() | TWO.keys() for engine in opened(tmp_path))


def test_files_that_repeat_a_name_under_another_prefix_are_an_engine_each(tmp_path: Path) -> None:
    save_state(tmp_path / "engine-0.safetensors", {**ONE, **TWO})
    save_state(tmp_path / "engine-1.safetensors", {f"model.language_model.{name}": ONE[name] for name in ONE})
    assert names(tmp_path) == ["engine-0", "engine-1"]


def test_shards_with_tensors_inside_and_outside_a_prefix_are_one_engine(tmp_path: Path) -> None:
    save_state(tmp_path / "one.safetensors", {f"model.{name}": ONE[name] for name in ONE})
    save_state(tmp_path / "two.safetensors", TWO)
    assert names(tmp_path) == [tmp_path.name]


def test_files_that_an_index_does_not_list_are_further_engines(tmp_path: Path) -> None:
    directory = tmp_path / "iter-3"
    save_state(directory / "one.safetensors", ONE)
    save_state(directory / "two.safetensors", TWO)
    save_state(directory / "other.safetensors", {"c.weight": torch.ones(1)})
    index = {"weight_map": {"a.weight": "one.safetensors", "b.weight": "two.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    indexed, other = opened(directory)
    assert (indexed.name, indexed.shapes.keys()) == ("iter-3", ONE.keys() | TWO.keys())
    assert (other.name, other.shapes.keys()) == ("other", {"c.weight"})


def test_the_tensors_of_an_index_must_be_in_its_shards(tmp_path: Path) -> None:
    save_state(tmp_path / "one.safetensors", ONE)
    index = {"weight_map": {"a.weight": "one.safetensors", "b.weight": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MalformedFile, match=r"b\.weight"):
        opened(tmp_path)


def test_a_shard_that_the_index_lists_and_is_missing_is_named(tmp_path: Path) -> None:
    save_state(tmp_path / "one.safetensors", ONE)
    index = {"weight_map": {"a.weight": "one.safetensors", "b.weight": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MalformedFile, match=r"two\.safetensors"):
        opened(tmp_path)


def test_a_listing_gives_digests_shapes_name_and_what_it_states(tmp_path: Path) -> None:
    stated = {"rounding": "stochastic", "device": "cuda", "threads": 1, "dtype": "bfloat16", "other": "dropped"}
    (engine,) = opened(save_listing(tmp_path / "served-weights.json", ONE, "sglang", **stated))
    assert (engine.name, engine.weights) == ("sglang", None)
    assert engine.shapes == {"a.weight": (4, 2)}
    assert engine.listed["a.weight"].digest.hex == listing_of(ONE)["tensors"]["a.weight"]["sha256"]
    assert engine.stated == {"iteration": 3} | {key: value for key, value in stated.items() if key != "other"}


def test_names_and_values_may_be_as_long_as_the_bounds(tmp_path: Path) -> None:
    bounds = {"device": "é" * 200, "iteration": (1 << 63) - 1}
    (engine,) = opened(save_listing(tmp_path / "served-weights.json", ONE, "x" * 200, **bounds))
    assert engine.name == "x" * 200
    assert engine.stated == {"rounding": "nearest", **bounds}


def test_several_listings_and_tensors_in_one_directory_are_all_engines(tmp_path: Path) -> None:
    save_listing(tmp_path / "served-weights-0.json", ONE, "vllm-0")
    save_listing(tmp_path / "served-weights-1.json", ONE, "vllm-1")
    save_state(tmp_path / "trainer.safetensors", ONE)
    (tmp_path / "notes.json").write_text("{}")
    assert names(tmp_path) == ["vllm-0", "vllm-1", "trainer"]


def test_a_listing_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    for number, engine in enumerate(("", None, 7)):
        assert names(save_listing(tmp_path / f"e{number}.json", ONE, engine)) == [f"e{number}"]  # type: ignore[arg-type]


def test_engines_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    files = [save_listing(tmp_path / each / "served-weights.json", ONE, "vllm") for each in "ab"]
    assert names(*files) == ["vllm", f"vllm ({files[1]})"]
    assert names(tmp_path / "a", tmp_path / "b") == ["vllm", f"vllm ({files[1]})"]


def test_the_same_path_any_number_of_times_still_gives_every_engine_a_name_of_its_own(tmp_path: Path) -> None:
    file = save_listing(tmp_path / "served-weights.json", ONE)
    assert len(set(names(*[file] * 4))) == 4


def test_a_path_that_is_not_there_or_holds_nothing_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "missing.json", tmp_path):
        with pytest.raises(NotFound) as caught:
            opened(path)
        assert str(path) in str(caught.value)


SOUND: dict[str, Any] = {"sha256": "ab" * 32, "shape": [4, 2]}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"tensors": {}},
        {"tensors": [SOUND]},
        {"tensors": {"a": "ab" * 32}},
        {"tensors": {"a": {**SOUND, "shape": [4, -2]}}},
        {"tensors": {"a": {**SOUND, "shape": [4, 2.0]}}},
        {"tensors": {"a": {**SOUND, "shape": [True]}}},
        {"tensors": {"a": {"sha256": "ab" * 32}}},
        {"tensors": {"a": {**SOUND, "sha256": "ab" * 31}}},
        {"tensors": {"a": {**SOUND, "sha256": "zz" * 32}}},
        {"tensors": {"a": {**SOUND, "sha256": None}}},
        {"tensors": {"a": SOUND}, "rounding": {"mode": "nearest"}},
        {"tensors": {"a": SOUND}, "device": 3},
        {"tensors": {"a": SOUND}, "threads": "many"},
        {"tensors": {"a": SOUND}, "iteration": [3]},
        {"tensors": {"a": SOUND}, "engine": "x" * 201},
        {"tensors": {"a": SOUND}, "engine": "vllm\x1b[2J"},
        {"tensors": {"a": SOUND}, "device": "x" * 201},
        {"tensors": {"a": SOUND}, "dtype": "bf16\n"},
        {"tensors": {"a": SOUND}, "iteration": 1 << 63},
        {"tensors": {"a": SOUND}, "threads": -(10**4000)},
    ],
    ids=lambda document: repr(document)[:80],
)
def test_a_listing_that_does_not_say_what_it_should_is_refused_with_its_path(document: Any, tmp_path: Path) -> None:
    file = tmp_path / "served-weights.json"
    file.write_text(json.dumps(document))
    with pytest.raises(MalformedFile) as caught:
        opened(tmp_path)
    assert caught.value.path == str(file)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"tensors": NaN}', b"[" * 100_000])
@pytest.mark.parametrize("name", ["served-weights.json", "engine.safetensors"])
def test_damaged_evidence_raises_only_this_projects_errors(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RegistryError):
        opened(tmp_path)
