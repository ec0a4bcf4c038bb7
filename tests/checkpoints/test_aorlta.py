"""The aorlta checkpoint as a whole: read once, exact to the bit, and refused by name where it is damaged."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.checkpoints import read_checkpoint
from registry.core import jsontext
from registry.core.errors import MalformedFile, NotFound, Refused, RegistryError, UnsupportedLora
from registry.core.model import Checkpoint
from registry.operations import export
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint, write_manifest
from tests.support.values import raw, read, state_of

A, B = f"{MODULES[0]}.lora_A.weight", f"{MODULES[0]}.lora_B.weight"


def test_the_tensors_are_the_trainers_own_bits(tmp_path: Path) -> None:
    state = lora_state()
    checkpoint = read(tmp_path / "run", contents(state))
    assert state_of(checkpoint.lora) == {name: raw(value) for name, value in state.items()}
    data = Path(checkpoint.path).read_bytes()
    assert (checkpoint.digest.hex, checkpoint.size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (checkpoint.reader, checkpoint.nonfinite, checkpoint.zero_b) == ("aorlta", 0, 0)
    assert checkpoint.warnings == checkpoint.aliases == ()


def test_directory_file_and_relative_paths_name_the_same_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_checkpoint(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for path in (directory, directory / "trainer.pt", "run/ckpt/iter-3", "run/ckpt/iter-3/trainer.pt"):
        checkpoint = read_checkpoint(str(path))
        assert checkpoint.path == str(directory / "trainer.pt")
        assert checkpoint.manifest is not None


def test_a_directory_without_a_checkpoint_is_not_found_and_a_run_is_recognised(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run")
    kinds = r"trainer\.pt and no adapter_config\.json and no model_world_size_\*_rank_\*\.pt"
    with pytest.raises(NotFound, match=f"holds no {kinds}$"):
        read_checkpoint(str(tmp_path))
    with pytest.raises(NotFound, match=f"It looks like a run: .*{tmp_path}/run/ckpt"):
        read_checkpoint(str(tmp_path / "run"))
    with pytest.raises(NotFound, match="no such file"):
        read_checkpoint(str(tmp_path / "nowhere.pt"))


def test_progress_adds_up_to_the_file(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    checkpoint = read(tmp_path / "run", progress=lambda count, total: seen.append((count, total)))
    assert sum(count for count, _ in seen) == checkpoint.size
    assert {total for _, total in seen} == {checkpoint.size}


def test_one_tensor_under_two_names_is_exported_twice_and_recorded(tmp_path: Path) -> None:
    """transformers#27613"""
    state = lora_state()
    other = f"{MODULES[2]}.lora_A.weight"
    state[other] = state[A]
    checkpoint = read(tmp_path / "run", contents(state))
    assert checkpoint.aliases == ((A, other),)
    assert state_of(checkpoint.lora) == {name: raw(value) for name, value in state.items()}


def test_two_views_of_one_storage_are_no_alias(tmp_path: Path) -> None:
    state = lora_state()
    both = torch.randn(8, 16)
    state[A], state[f"{MODULES[1]}.lora_A.weight"] = both[:4], both[4:]
    checkpoint = read(tmp_path / "run", contents(state))
    assert checkpoint.aliases == ()
    assert state_of(checkpoint.lora) == {name: raw(value) for name, value in state.items()}


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda: torch.randn(16, 4).T, id="transformers#27613 transposed"),
        pytest.param(lambda: torch.randn(1000, 1000)[7:11, 100:116], id="pytorch#40157 slice of one big buffer"),
        pytest.param(lambda: torch.randn(8, 64)[::2, ::4], id="steps"),
        pytest.param(lambda: torch.randn(16).expand(4, 16), id="expanded"),
        pytest.param(lambda: torch.randn(4, 16).bfloat16(), id="bf16"),
        pytest.param(lambda: torch.randn(4, 16).double().T.contiguous().T, id="f64"),
    ],
)
def test_a_view_is_exported_as_its_own_elements_and_no_others(tmp_path: Path, view: Callable[[], torch.Tensor]) -> None:
    state = {**lora_state(), A: view()}
    lora = read(tmp_path / "run", contents(state)).lora
    assert state_of(lora)[A] == raw(state[A])
    assert lora.nbytes == sum(value.numel() * value.itemsize for value in state.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_nonfinite_element_is_refused_unless_allowed_and_then_counted(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    """ainode#186"""
    state = {name: tensor.to(dtype) for name, tensor in lora_state().items()}
    state[B][23, 3] = value
    state[A][0, :2] = value
    directory = write_checkpoint(tmp_path / "run", contents(state))
    with pytest.raises(UnsupportedLora, match=r"3 elements in 2 tensors.*--allow-nonfinite") as caught:
        read_checkpoint(str(directory))
    assert caught.value.key == A.removesuffix(".weight")
    allowed = read_checkpoint(str(directory), allow_nonfinite=True)
    assert (allowed.nonfinite, allowed.warnings) == (3, ("3 elements are infinite or NaN",))
    assert state_of(allowed.lora) == {name: raw(tensor) for name, tensor in state.items()}


def test_an_adapter_whose_every_b_is_zero_is_accepted_with_a_warning(tmp_path: Path) -> None:
    """peft#1402"""
    state = lora_state()
    zeros = {name: torch.zeros_like(value) for name, value in state.items() if "lora_B" in name}
    some = read(tmp_path / "some", contents({**state, B: zeros[B]}))
    every = read(tmp_path / "every", contents({**state, **zeros}))
    assert (some.zero_b, some.warnings) == (1, ())
    assert (every.zero_b, every.warnings) == (3, ("every lora_B is zero (3 of 3): this adapter changes nothing",))


def test_numpy_state_paths_and_namespaces_are_read_past(tmp_path: Path) -> None:
    """transformers#34631"""
    numpy_state = np.random.default_rng(0).bit_generator.state
    odd = {"np": [np.random.RandomState(0).get_state(), numpy_state, np.float64(1)], "path": Path("/a"), "set": {1}}
    saved = {**odd, **contents(lora_state()), "args": argparse.Namespace(lr=0.1, path=Path("/b"), t=torch.ones(2))}
    assert state_of(read(tmp_path / "run", saved).lora) == state_of(read(tmp_path / "plain").lora)


class Payload:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_no_code_in_the_pickle_runs(tmp_path: Path) -> None:
    """VoxCPM#267"""
    trap = tmp_path / "touched"
    directory = write_checkpoint(tmp_path / "run", {"evil": Payload(trap), **contents(lora_state())})
    read_checkpoint(str(directory))
    assert not trap.exists()
    torch.load(directory / "trainer.pt", weights_only=False)
    assert trap.exists()  # the trap works


@pytest.mark.parametrize("manifest", ["stale", "none", "fits"])
def test_a_file_cut_short_is_called_truncated(tmp_path: Path, manifest: str) -> None:
    """dddd_trainer#36"""
    directory = write_checkpoint(tmp_path / "run", manifest=manifest != "none")
    data = (directory / "trainer.pt").read_bytes()
    (directory / "trainer.pt").write_bytes(data[: len(data) * 6 // 10])
    if manifest == "fits":
        write_manifest(directory)
    with pytest.raises(MalformedFile, match=r"trainer\.pt: truncated"):
        read_checkpoint(str(directory))


def test_a_git_lfs_pointer_is_called_one(tmp_path: Path) -> None:
    """transformers#27923"""
    directory = write_checkpoint(tmp_path / "run", manifest=False)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 99\n"
    (directory / "trainer.pt").write_text(pointer)
    with pytest.raises(MalformedFile, match="Git LFS pointer"):
        read_checkpoint(str(directory))


def test_one_changed_bit_anywhere_in_the_file_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "run")
    file = directory / "trainer.pt"
    data = file.read_bytes()
    for place in range(0, len(data), len(data) // 50):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(Refused):
            read_checkpoint(str(directory))


def export_of(checkpoint: Checkpoint) -> bytes:
    """Everything that an export derives from a checkpoint without writing it."""
    prepared = export.prepare(checkpoint)
    return jsontext.pretty(export.manifest_of(prepared, prepared.config, "2026-01-01T00:00:00Z")) + prepared.config


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run, which the property tests damage and restore."""
    return write_checkpoint(tmp_path_factory.mktemp("sound") / "run")


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "remove", "repeat"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=3,
)


def mutated(data: bytes, mutations: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, extra in mutations:
        at = min(int(where * len(data)), len(data) - 1)
        before, here, after = data[:at], data[at : at + len(extra)], data[at + len(extra) :]
        data = {
            "flip": before + bytes(one ^ other for one, other in zip(here, extra, strict=False)) + after,
            "cut": before,
            "insert": before + extra + here + after,
            "remove": before + after,
            "repeat": before + here + here + after,
        }[kind] or b"\0"
    return data


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=st.sampled_from(["trainer.pt", "data.pkl", "manifest.json", "../../config.json"]),
    mutations=MUTATIONS,
    fits=st.booleans(),
)
def test_a_damaged_checkpoint_gives_a_result_or_an_error_of_ours(
    sound: Path, tmp_path: Path, target: str, mutations: list[tuple[str, float, bytes]], *, fits: bool
) -> None:
    files = {name: (sound / name).read_bytes() for name in ("trainer.pt", "manifest.json", "../../config.json")}
    directory = tmp_path / "run/ckpt/iter-3"
    directory.mkdir(parents=True, exist_ok=True)
    if target == "data.pkl":  # damage behind the archive's checksums
        with zipfile.ZipFile(sound / "trainer.pt") as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        pickle = next(name for name in records if name.endswith("/data.pkl"))
        records[pickle] = mutated(records[pickle], mutations)
        with zipfile.ZipFile(tmp_path / "packed", "w", zipfile.ZIP_STORED) as archive:
            for name, data in records.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        files["trainer.pt"] = (tmp_path / "packed").read_bytes()
    else:
        files[target] = mutated(files[target], mutations)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    if fits or target == "data.pkl":
        write_manifest(directory)
    try:
        export_of(read_checkpoint(str(directory)))
    except RegistryError as error:
        assert str(error)  # noqa: PT017


WORDS = st.sampled_from(["q_proj", "a.q_proj", ".*", "(?i)a", "(", "base_model.model", "module", "\ud800", "\x00", "é"])
TEXTS = WORDS | st.text(max_size=5)
NUMBERS = st.sampled_from([0, 1, 2, 4, 8, -1, 2**63, 10**400, 0.5, 1e308, math.inf, math.nan, True]) | st.integers()
ODD = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers(), inner, max_size=3),
    max_leaves=5,
)
PATTERNS = st.dictionaries(TEXTS, st.just(4) | NUMBERS, min_size=1, max_size=2)
LORA = ["r", "alpha", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias", "use_dora", "fan_in_fan_out"]
MODEL = ["base", "revision", "adapter"]
PLACES = [
    *[("trainer.pt", "iteration"), ("trainer.pt", "lora"), *(("trainer.pt", "lora", key) for key in LORA)],
    *[("config.json", "run_id"), ("config.json", "lora"), *(("config.json", "lora", key) for key in LORA)],
    *[("config.json", "model"), *(("config.json", "model", key) for key in MODEL)],
    *[("config.json", "resume", "checkpoint"), ("config.json", "sync", "stochastic_rounding"), ("config.json",)],
]
ODDITIES = st.lists(st.tuples(st.sampled_from(PLACES), ODD | PATTERNS | TEXTS), max_size=2)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(oddities=ODDITIES, module=st.just("m") | TEXTS, option=st.none() | NUMBERS)
def test_a_checkpoint_that_says_anything_gives_a_result_or_an_error_of_ours(
    tmp_path: Path, oddities: list[tuple[tuple[str, ...], Any]], module: str, option: Any
) -> None:
    directory = tmp_path / "run/ckpt/iter-3"
    directory.mkdir(parents=True, exist_ok=True)
    config = {"run_id": "r", "model": {"base": "b"}, "lora": {"alpha": 8}, "resume": {}, "sync": {}}
    documents: dict[str, Any] = {"trainer.pt": contents(lora_state(modules=(module,))), "config.json": config}
    for (*path, key), value in oddities:
        place = documents
        for step in path:
            place = place[step] if isinstance(place.get(step), dict) else {}
        place[key] = value
    torch.save(documents["trainer.pt"], directory / "trainer.pt")
    (tmp_path / "run/config.json").write_text(json.dumps(documents["config.json"]))
    try:
        export_of(read_checkpoint(str(directory), alpha=option))
    except RegistryError as error:
        assert str(error)  # noqa: PT017


def test_what_is_stated_in_no_usable_form_is_warned_of(tmp_path: Path) -> None:
    config = {"run_id": "r", "model": {"adapter": "best"}, "resume": {"checkpoint": 3}}
    checkpoint = read(tmp_path / "run", contents(lora_state(), iteration="3"), config=config)
    assert checkpoint.provenance.iteration == 3  # the directory's
    assert checkpoint.warnings == (
        "the checkpoint's iteration is no number: '3'",
        "model.adapter in the run's config is no digest: 'best'",
        "resume.checkpoint in the run's config is no digest: 3",
    )
