"""Adapters handed out for one engine: what that one would not do is refused, and the function never changes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import IntegrityError, NotFound, Refused, Registry
from registry.core.layout import CONFIG, MANIFEST, WEIGHTS
from tests.support.merging import llama, load_adapted, logits, make_adapter, make_base
from tests.support.taking import PREFIX, Q, plain
from tests.support.trees import contents, flip, snapshot


def added(home: Path, source: Path) -> tuple[Registry, str]:
    registry = Registry(home)
    return registry, registry.add(source, run="run").digest.hex


def test_what_fits_is_handed_out_as_it_is_stored(home: Path, tmp_path: Path) -> None:
    registry, digest = added(home, plain(tmp_path / "a"))
    for engine in ("vllm", "sglang", "peft"):
        got = Path(registry.get(digest, tmp_path / engine, engine=engine, base_name="org/base", max_rank=4))
        assert contents(got) == contents(Path(registry.path(digest)))


@pytest.mark.parametrize(
    ("engine", "config", "says"),
    [
        ("vllm", {"alpha_pattern": {"q_proj": 16}}, "not for vllm: rank_pattern or alpha_pattern, at .*q_proj"),
        ("sglang", {"use_rslora": True}, "not for sglang: use_rslora: .*sqrt"),
        ("peft", {"init_lora_weights": "pissa"}, "not for peft: init_lora_weights 'pissa'"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_what_does_not_fit_is_refused_and_nothing_is_made(
    engine: str, config: dict[str, Any], says: str, force: bool, home: Path, tmp_path: Path
) -> None:
    registry, digest = added(home, plain(tmp_path / "a", **config))
    out = tmp_path / "place" / "out"
    out.parent.mkdir()
    if force:
        registry.get(digest, out)
    before = snapshot(out.parent)
    with pytest.raises(Refused, match=says) as caught:
        registry.get(digest, out, engine=engine, force=force)
    assert caught.value.key == f"sha256:{digest}"
    assert snapshot(out.parent) == before


def test_a_rank_above_the_engines_is_refused(home: Path, tmp_path: Path) -> None:
    registry, digest = added(home, plain(tmp_path / "a"))
    with pytest.raises(Refused, match=r"rank 4.*highest rank of 3"):
        registry.get(digest, tmp_path / "out", engine="vllm", max_rank=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wish",
    [
        {"engine": "tgi"},
        {"engine": "vllm", "base_name": " "},
        {"base_name": "a\x1bb"},
        {"engine": "vllm", "max_rank": 0},
        {"max_rank": 8},
    ],
)
def test_what_nobody_can_mean_is_refused(wish: dict[str, Any], home: Path, tmp_path: Path) -> None:
    registry, digest = added(home, plain(tmp_path / "a"))
    with pytest.raises(Refused):
        registry.get(digest, tmp_path / "out", **wish)
    assert not (tmp_path / "out").exists()


def test_another_name_of_the_base_changes_that_name_and_says_so(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a", zeta=[1], target_modules=["q_proj"], alpha_pattern={"z": 2, "a": 4})
    registry, digest = added(home, source)
    stored = contents(Path(registry.path(digest)))
    got = contents(Path(registry.get(digest, tmp_path / "out", base_name="served")))
    assert got[WEIGHTS] == stored[WEIGHTS]
    before, after = json.loads(stored[CONFIG]), json.loads(got[CONFIG])
    assert after == before | {"base_model_name_or_path": "served"}
    assert list(after) == list(before), "peft takes the first pattern that matches"
    assert list(after["alpha_pattern"]) == ["z", "a"]
    manifest = json.loads(got[MANIFEST])
    change = manifest.pop("adapted")
    assert manifest == json.loads(stored[MANIFEST])
    assert change == {
        "config_sha256": hashlib.sha256(got[CONFIG]).hexdigest(),
        "base_model_name_or_path": {"from": "org/base", "to": "served"},
    }
    assert contents(Path(registry.path(digest))) == stored


def test_such_a_copy_is_known_again(home: Path, tmp_path: Path) -> None:
    registry, digest = added(home, plain(tmp_path / "a"))
    copy = registry.get(digest, tmp_path / "out", base_name="served")
    again = registry.add(copy)
    assert (again.digest.hex, again.outcome.value) == (digest, "already present")


def test_peft_computes_the_same_with_such_a_copy(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama())
    source = make_adapter(tmp_path / "a", base, target_modules=["q_proj", "down_proj"], use_rslora=True)
    registry, digest = added(home, source)
    copy = Path(registry.get(digest, tmp_path / "out", engine="vllm", base_name="served"))
    assert torch.equal(logits(load_adapted(base, copy)), logits(load_adapted(base, source)))


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, MANIFEST])
def test_damaged_files_are_not_handed_out_for_an_engine_either(name: str, home: Path, tmp_path: Path) -> None:
    registry, digest = added(home, plain(tmp_path / "a"))
    flip(Path(registry.path(digest)) / name)
    for wish in ({"engine": "vllm"}, {"base_name": "served"}, {"engine": "vllm", "base_name": "served"}):
        with pytest.raises(IntegrityError):
            registry.get(digest, tmp_path / "out", **wish)
        assert not (tmp_path / "out").exists()


def test_a_header_that_cannot_be_read_is_damage_and_no_refusal(home: Path, tmp_path: Path) -> None:
    registry, digest = added(home, plain(tmp_path / "a"))
    weights = Path(registry.path(digest)) / WEIGHTS
    weights.chmod(0o600)
    weights.write_bytes(b"x" * 100)
    with pytest.raises(IntegrityError, match="damaged"):
        registry.fitness(digest)


def test_what_engines_make_of_an_adapter_is_told(home: Path, tmp_path: Path) -> None:
    magnitude = {f"{PREFIX}{Q}.lora_magnitude_vector": torch.ones(24)}
    registry, digest = added(home, plain(tmp_path / "a", state=magnitude, use_dora=True))
    told = {each.engine.value: (each.max_lora_rank, bool(each.unfit)) for each in registry.fitness(digest)}
    assert told == {"vllm": (4, True), "sglang": (4, True), "peft": (4, False)}
    with pytest.raises(NotFound):
        registry.fitness("0" * 64)
