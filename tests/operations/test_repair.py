"""Repair: from the checkpoint, to the same bytes, or not at all; the bad copy is kept."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry import Digest, Registry
from registry.core.layout import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS
from registry.operations.verify import Check
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.taking import plain
from tests.support.trees import contents as files_in
from tests.support.trees import flip


@dataclass(frozen=True)
class Shelf:
    registry: Registry
    checkpoint: Path
    digest: Digest

    @property
    def directory(self) -> Path:
        return Path(self.registry.home) / "adapters" / self.digest.hex[:2] / self.digest.hex

    @property
    def quarantine(self) -> list[Path]:
        return sorted((Path(self.registry.home) / "quarantine").glob("*"))

    @property
    def record(self) -> Path:
        (path,) = (Path(self.registry.home) / "records" / self.digest.hex[:2] / self.digest.hex).glob("export-*")
        return path


@pytest.fixture(params=["checkpoint", "options", "peft"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    registry = Registry(tmp_path / "home", note=lambda _: None)
    if request.param == "checkpoint":
        checkpoint = write_checkpoint(tmp_path / "run")
        return Shelf(registry, checkpoint, registry.add(checkpoint).digest)
    if request.param == "options":
        checkpoint = write_checkpoint(tmp_path / "run", contents(lora_state(), alpha=None), config={})
        return Shelf(registry, checkpoint, registry.add(checkpoint, alpha=3.0, run="named", base="org/other").digest)
    checkpoint = plain(tmp_path / "peft")
    return Shelf(registry, checkpoint, registry.add(checkpoint, base="org/other").digest)


@pytest.mark.parametrize("damage", [*ADAPTER_FILES, "all", "missing", "gone"])
def test_damaged_adapter_is_made_anew_to_the_byte_and_the_bad_copy_is_kept(damage: str, shelf: Shelf) -> None:
    sound = files_in(shelf.directory)
    if damage == "gone":
        shutil.rmtree(shelf.directory)
    elif damage == "missing":
        (shelf.directory / WEIGHTS).unlink()
    else:
        for name in ADAPTER_FILES if damage == "all" else (damage,):
            flip(shelf.directory / name)
    bad = files_in(shelf.directory)
    repaired = shelf.registry.repair(shelf.registry.verify())
    assert [digest for digest, _ in repaired.done] == [shelf.digest], repaired.failed
    assert files_in(shelf.directory) == sound
    assert list((Path(shelf.registry.home) / "pending").iterdir()) == [], "nothing is left to be done"
    assert shelf.registry.verify().findings == ()
    assert [files_in(each) for each in shelf.quarantine] == ([bad] if bad else [])
    assert shelf.record.exists(), "and no other record was made"
    assert shelf.registry.repair(shelf.registry.verify()).done == ()


def test_checkpoint_that_is_gone_or_changed_repairs_nothing_and_says_why(shelf: Shelf, tmp_path: Path) -> None:
    flip(shelf.directory / WEIGHTS)
    bad = files_in(shelf.directory)
    shelf.checkpoint.rename(tmp_path / "away")
    (error,) = shelf.registry.repair(shelf.registry.verify()).failed
    assert "no such file" in str(error)
    other = write_checkpoint(tmp_path / "second", contents(lora_state(seed=5), alpha=None))
    shutil.copytree(other if other.parent.name == shelf.checkpoint.parent.name else tmp_path / "away", shelf.checkpoint)
    for path in shelf.checkpoint.glob("*.safetensors"):
        flip(path)
    (error,) = shelf.registry.repair(shelf.registry.verify()).failed
    assert "by now" in str(error)
    assert "expected" in str(error)
    assert (files_in(shelf.directory), shelf.quarantine) == (bad, [])
    assert shelf.registry.verify().findings


def test_record_that_the_manifest_states_is_recorded_again(shelf: Shelf) -> None:
    before = shelf.record.read_bytes()
    name = shelf.record
    name.unlink()
    repaired = shelf.registry.repair(shelf.registry.verify())
    assert (repaired.done, repaired.failed) == ((), ())
    assert (name.read_bytes(), shelf.registry.verify().findings) == (before, ())
    assert shelf.quarantine == []


def test_damaged_record_is_no_reason_to_replace_a_sound_adapter(shelf: Shelf) -> None:
    flip(shelf.record)
    shelf.registry.repair(shelf.registry.verify())
    assert shelf.quarantine == []
    assert Check.RECORD in {each.check for each in shelf.registry.verify().findings}


def test_removed_adapter_is_not_brought_back(shelf: Shelf) -> None:
    found_before = shelf.registry.verify()
    flip(shelf.directory / MANIFEST)
    flip(shelf.directory / CONFIG)
    damaged = shelf.registry.verify()
    shelf.registry.remove(shelf.digest.hex)
    assert (found_before.findings, damaged.findings != ()) == ((), True)
    assert shelf.registry.repair(damaged).done == ()
    assert not shelf.directory.exists()
