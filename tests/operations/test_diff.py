"""`diff` of two stored adapters: verified first, then compared; and how the command tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry import Registry
from registry.core.difference import Likeness
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, NotFound, UnsupportedLora
from registry.operations.diff import diff
from registry.store import LocalStore
from tests.support.process import CommandLine
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.trees import flip, snapshot


def halved(state: dict) -> dict:
    return {name: tensor * (2 if "lora_A" in name else 0.5) for name, tensor in state.items()}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diff") / "home"


@pytest.fixture(scope="module")
def digests(home: Path) -> dict[str, Digest]:
    """Adapters of one base, by what they are; `other base` is of another."""
    state = lora_state()
    saved = {
        "plain": contents(state),
        "other factors": contents(halved(state)),
        "strong": contents(state, alpha=16),
        "retrained": contents(lora_state(seed=1)),
        "one module": contents(lora_state(modules=MODULES[:1])),
        "other base": contents({name: t[:, :8] if "lora_A" in name else t for name, t in state.items()}),
    }
    registry = Registry(home)
    return {
        name: registry.add(write_checkpoint(home.parent / name, each, config={})).digest for name, each in saved.items()
    }


@pytest.mark.parametrize(
    ("other", "likeness"),
    [
        ("plain", Likeness.SAME_TENSORS),
        ("other factors", Likeness.SAME_FUNCTION),
        ("strong", Likeness.DIFFERENT),
        ("retrained", Likeness.DIFFERENT),
        ("one module", Likeness.DIFFERENT),
    ],
)
def test_stored_adapters_are_told_apart(other: str, likeness: Likeness, home: Path, digests: dict[str, Digest]) -> None:
    assert diff(LocalStore(str(home)), digests["plain"], digests[other]).likeness is likeness


def test_diff_writes_nothing(home: Path, digests: dict[str, Digest]) -> None:
    before = snapshot(home)
    Registry(home).diff(digests["plain"].hex[:8], str(digests["strong"]))
    assert snapshot(home) == before


def test_a_damaged_or_missing_adapter_is_refused_on_either_side(home: Path, digests: dict[str, Digest]) -> None:
    store, good, bad = LocalStore(str(home)), digests["plain"], digests["retrained"]
    file = Path(store.directory(bad)) / "adapter_model.safetensors"
    flip(file)
    try:
        for pair in ((good, bad), (bad, good)):
            with pytest.raises(IntegrityError):
                diff(store, *pair)
    finally:
        flip(file)
    for pair in ((good, Digest("0" * 64)), (Digest("0" * 64), good)):
        with pytest.raises(NotFound):
            diff(store, *pair)


def test_adapters_of_different_bases_are_refused(home: Path, digests: dict[str, Digest]) -> None:
    with pytest.raises(UnsupportedLora, match="different bases"):
        diff(LocalStore(str(home)), digests["plain"], digests["other base"])


def test_the_command_prints_one_document(home: Path, digests: dict[str, Digest]) -> None:
    one, other = digests["plain"], digests["strong"]
    document = json.loads(CommandLine(home).ok("diff", one.hex[:10], str(other), "--json"))
    modules = document.pop("modules")
    assert document == {
        "first": str(one),
        "second": str(other),
        "likeness": "different functions",
        "relative": pytest.approx(1),
        "cosine": pytest.approx(1),
        "settings": {"lora_alpha": [8, 16]},
        "only_first": [],
        "only_second": [],
    }
    assert {each["module"] for each in modules} == set(MODULES)
    assert list(modules[0]) == ["module", "relative", "cosine", "norms", "ulp_a", "ulp_b"]


def test_the_command_tells_people_what_changed(home: Path, digests: dict[str, Digest]) -> None:
    cli, plain = CommandLine(home), str(digests["plain"])
    same = cli("diff", plain, digests["other factors"].hex)
    assert (same.code, same.err) == (0, "")
    assert "same function, other factors" in same.out
    fewer = cli("diff", plain, digests["one module"].hex)
    assert fewer.code == 0, "two adapters that differ are no failure"
    assert all(module in fewer.out for module in MODULES)
    assert "only first" in fewer.out
    assert "only first" not in same.out
    refused = cli("diff", plain, digests["other base"].hex)
    assert (refused.code, refused.out) == (2, "")
    assert "different bases" in refused.err
    assert cli("diff", plain, "0000").code == 3
