"""Adding: what comes of adding again, of equal adapters, and of stored copies that went bad."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from registry import Digest, IntegrityError, Registry
from registry.checkpoints import read_checkpoint
from registry.core import records
from registry.core.layout import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS
from registry.operations import export
from registry.operations.add import Added
from registry.store import LocalStore
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import contents as files_in
from tests.support.trees import flip, rewrite, snapshot


@pytest.fixture
def registry(home: Path) -> Registry:
    return Registry(home)


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    """Another run's checkpoint with the LoRA of `checkpoint`, trained on another base."""
    config = {"run_id": "twin", "model": {"base": "org/other"}}
    return write_checkpoint(tmp_path / "twin", contents(lora_state(), iteration=7), config=config)


def directory(registry: Registry, added: Added) -> Path:
    return Path(registry.home) / "adapters" / added.digest.hex[:2] / added.digest.hex


def quarantined(registry: Registry) -> list[Path]:
    return sorted((Path(registry.home) / "quarantine").glob("*"))


def test_adding_again_writes_nothing(registry: Registry, checkpoint: Path) -> None:
    first = registry.add(checkpoint)
    stores = [Path(registry.home) / name for name in ("adapters", "records")]
    before = snapshot(*stores)
    assert len(before) > len(ADAPTER_FILES)
    second = Registry(registry.home).add(checkpoint)
    assert snapshot(*stores) == before
    assert (first.outcome, first.new_export) == ("added", True)
    assert (second.outcome, second.new_export, second.damage) == ("already present", False, None)
    assert second.digest == first.digest
    assert len(registry.show(first.digest.hex).exports) == 1


def test_checkpoint_in_another_place_is_the_same_export(registry: Registry, checkpoint: Path, tmp_path: Path) -> None:
    first = registry.add(checkpoint)
    shutil.copytree(checkpoint.parents[1], tmp_path / "moved" / "run")
    moved = registry.add(tmp_path / "moved" / "run" / "ckpt" / checkpoint.name)
    assert (moved.digest, moved.outcome, moved.new_export) == (first.digest, "already present", False)


def test_two_checkpoints_with_equal_lora_are_one_adapter_with_two_exports(
    registry: Registry, checkpoint: Path, twin: Path
) -> None:
    first, second = registry.add(checkpoint), registry.add(twin)
    assert second.digest == first.digest
    assert (second.outcome, second.new_export) == ("already present", True)
    assert len(registry.newest(9)) == 1
    exports = registry.show(first.digest.hex).exports
    assert [(each.run, each.iteration, each.base) for each in exports] == [
        ("run", 3, "org/base"),
        ("twin", 7, "org/other"),
    ]
    assert exports[0].checkpoint != exports[1].checkpoint
    assert len(LocalStore(registry.home).records(first.digest, records.EXPORT)) == 2
    assert not registry.add(checkpoint).new_export
    assert not registry.add(twin).new_export


def test_equal_tensors_with_another_alpha_are_another_adapter_that_names_the_first(
    registry: Registry, checkpoint: Path, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", contents(lora_state(), alpha=16), config={})
    one, two = registry.add(checkpoint), registry.add(other)
    assert one.digest != two.digest
    assert registry.show(one.digest.hex).same_tensors == (two.digest,)


def test_record_proves_itself_and_states_the_adapter_and_the_checkpoint(registry: Registry, checkpoint: Path) -> None:
    added = registry.add(checkpoint)
    (record,) = LocalStore(registry.home).records(added.digest, records.EXPORT)
    statement = json.loads(record.data)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": WEIGHTS, "digest": {"sha256": added.digest.hex}}]
    assert statement["predicate"] == json.loads((directory(registry, added) / MANIFEST).read_bytes())
    assert registry.show(added.digest.hex).exports[0].record == record.digest


def remove(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut(path: Path) -> None:
    rewrite(path, path.read_bytes()[:100])


def lengthen(path: Path) -> None:
    rewrite(path, path.read_bytes() + b"\n")


@pytest.mark.parametrize("name", ADAPTER_FILES)
@pytest.mark.parametrize("damage", [flip, cut, lengthen, remove, make_directory])
def test_damaged_copy_is_refused_then_replaced_and_kept_as_evidence(
    damage: Callable[[Path], None], name: str, registry: Registry, checkpoint: Path
) -> None:
    added = registry.add(checkpoint)
    stored = directory(registry, added)
    sound = files_in(stored)
    damage(stored / name)
    damaged = files_in(stored)
    with pytest.raises(IntegrityError):
        registry.path(added.digest.hex)

    repaired = registry.add(checkpoint)
    assert (repaired.digest, repaired.outcome, repaired.new_export) == (added.digest, "repaired", False)
    assert repaired.damage
    assert files_in(Path(registry.path(added.digest.hex))) == sound
    (evidence,) = quarantined(registry)
    assert files_in(evidence) == damaged

    assert registry.add(checkpoint).outcome == "already present"
    assert len(quarantined(registry)) == 1
    assert len(registry.show(added.digest.hex).exports) == 1


def test_damaged_copy_is_repaired_from_another_checkpoint_with_the_same_lora(
    registry: Registry, checkpoint: Path, twin: Path
) -> None:
    added = registry.add(checkpoint)
    flip(directory(registry, added) / WEIGHTS)
    repaired = registry.add(twin)
    assert (repaired.outcome, repaired.new_export) == ("repaired", True)
    assert registry.path(added.digest.hex)
    assert [each.run for each in registry.show(added.digest.hex).exports] == ["run", "twin"]
    assert registry.add(twin).outcome == "already present"
    assert registry.path(added.digest.hex)


def test_adapter_that_vanished_is_added_again_with_its_record(registry: Registry, checkpoint: Path) -> None:
    added = registry.add(checkpoint)
    shutil.rmtree(directory(registry, added))
    again = registry.add(checkpoint)
    assert (again.outcome, again.new_export) == ("added", False)
    assert registry.path(added.digest.hex)
    assert len(registry.show(added.digest.hex).exports) == 1


def test_manifest_that_no_record_states_is_found(registry: Registry, checkpoint: Path) -> None:
    added = registry.add(checkpoint)
    manifest = directory(registry, added) / MANIFEST
    rewrite(manifest, manifest.read_bytes().replace(b'"alpha_source": "checkpoint"', b'"alpha_source": "config"'))
    with pytest.raises(IntegrityError, match="none of its records"):
        registry.path(added.digest.hex)


def test_damaged_record_is_found_and_costs_no_sound_adapter(registry: Registry, checkpoint: Path) -> None:
    added = registry.add(checkpoint)
    (record,) = (Path(registry.home) / "records").rglob("*.json")
    flip(record)
    before = snapshot(Path(registry.home) / "adapters")
    for attempt in (lambda: registry.path(added.digest.hex), lambda: registry.add(checkpoint)):
        with pytest.raises(IntegrityError, match=record.name):
            attempt()
    assert snapshot(Path(registry.home) / "adapters") == before
    assert quarantined(registry) == []


def test_lost_record_is_written_again_from_the_manifest(registry: Registry, checkpoint: Path, twin: Path) -> None:
    added = registry.add(checkpoint)
    (record,) = (Path(registry.home) / "records").rglob("*.json")
    data = record.read_bytes()
    record.unlink()
    assert registry.add(twin).new_export
    assert record.read_bytes() == data
    assert registry.path(added.digest.hex)


def test_index_that_was_lost_is_filled_by_adding_and_by_showing(
    registry: Registry, checkpoint: Path, twin: Path
) -> None:
    digest = registry.add(checkpoint).digest
    registry.add(twin)
    for refill in (lambda fresh: fresh.add(checkpoint), lambda fresh: fresh.show(digest.hex)):
        for file in Path(registry.home).glob("index.sqlite*"):
            file.unlink()
        fresh = Registry(registry.home)
        refill(fresh)
        assert len(fresh.newest(9)[0].exports) == 2


class Overtaken(LocalStore):
    """A store in which another process publishes between our check and our rename: the one seam used here."""

    def __init__(self, home: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(home)
        self.meanwhile = meanwhile

    def contains(self, digest: Digest) -> bool:
        found, meanwhile = super().contains(digest), self.meanwhile
        self.meanwhile = lambda: None
        meanwhile()
        return found


def add_overtaken(registry: Registry, checkpoint: Path, meanwhile: Callable[[], object]) -> Added:
    from registry.operations.add import add

    store, now = Overtaken(registry.home, meanwhile), "2026-01-01T00:00:00.000000Z"
    new = export.prepare(read_checkpoint(str(checkpoint)))
    return add(store, registry._opened.index, new, now)[0]


def test_publication_that_another_process_won_counts_as_present(
    registry: Registry, checkpoint: Path, twin: Path
) -> None:
    added = add_overtaken(registry, checkpoint, lambda: registry.add(twin))
    assert (added.outcome, added.new_export) == ("already present", True)
    assert registry.path(added.digest.hex)
    runs = {each.predicate["run"]["id"] for each in LocalStore(registry.home).records(added.digest, records.EXPORT)}
    assert runs == {"run", "twin"}


def test_damaged_copy_that_won_the_publication_is_replaced(registry: Registry, checkpoint: Path) -> None:
    def publish_damaged() -> None:
        flip(directory(registry, Registry(registry.home).add(checkpoint)) / WEIGHTS)

    added = add_overtaken(registry, checkpoint, publish_damaged)
    assert (added.outcome, added.new_export, len(quarantined(registry))) == ("repaired", False, 1)
    assert registry.path(added.digest.hex)


def test_adapter_that_another_process_removed_meanwhile_is_exported_anew(registry: Registry, checkpoint: Path) -> None:
    digest = registry.add(checkpoint).digest
    added = add_overtaken(registry, checkpoint, lambda: registry.remove(digest.hex))
    assert (added.outcome, added.new_export) == ("added", True)
    assert [each.digest for each in registry.newest(9)] == [digest]
    assert registry.path(digest.hex)


def test_adapter_that_another_process_added_and_removed_meanwhile_is_exported_after_that(
    registry: Registry, checkpoint: Path
) -> None:
    def add_and_remove() -> None:
        registry.remove(registry.add(checkpoint).digest.hex)

    added = add_overtaken(registry, checkpoint, add_and_remove)
    assert (added.outcome, added.new_export) == ("added", True)
    assert registry.reindex().damaged == ()
    assert [each.digest for each in registry.newest(9)] == [added.digest]
    assert len(registry.show(added.digest.hex).exports) == 2


def test_record_and_manifest_are_canonical_and_hold_nothing_but_the_export(
    registry: Registry, checkpoint: Path
) -> None:
    added = registry.add(checkpoint)
    (record,) = LocalStore(registry.home).records(added.digest, records.EXPORT)
    rebuilt = export.manifest_of(
        export.prepare(read_checkpoint(str(checkpoint))),
        (directory(registry, added) / CONFIG).read_bytes(),
        record.predicate["exported_at"],
    )
    assert records.make(records.EXPORT, added.digest, rebuilt).data == record.data
