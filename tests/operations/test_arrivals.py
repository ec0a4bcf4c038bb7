"""A whole run: every checkpoint once, by step, and what is known is not read again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from registry import Digest, NotFound, Refused, Registry
from registry.core.errors import ManifestMismatch, StorageError
from registry.operations.arrivals import State
from tests.support.arrivals import CONFIG, states, write_run
from tests.support.runs import contents, lora_state, write_checkpoint, write_manifest
from tests.support.taking import plain
from tests.support.trainers import transformers
from tests.support.trees import flip, snapshot


def test_all_are_added_by_step(run: Path, home: Path) -> None:
    registry = Registry(home)
    found = list(registry.add_run(run))
    assert [(each.step, each.state) for each in found] == [(2, State.ADDED), (9, State.ADDED), (10, State.ADDED)]
    for each in found:
        assert each.digest == registry.resolve(f"run@{each.step}")
        assert each.added is not None
        assert registry.path(str(each.digest))


def test_what_is_known_is_not_read_again(run: Path, home: Path, reads: list[str]) -> None:
    first = [each.digest for each in Registry(home).add_run(run)]
    assert len(reads) == 3
    reads.clear()
    before = snapshot(home / "adapters", home / "records")
    again = list(Registry(home).add_run(run))
    assert [each.digest for each in again] == first
    assert {each.state for each in again} == {State.KNOWN}
    assert reads == []
    assert snapshot(home / "adapters", home / "records") == before
    write_run(run, 11)
    assert states(Registry(home).add_run(run)) == [(2, "known"), (9, "known"), (10, "known"), (11, "added")]
    assert reads == [str(run / "ckpt" / "iter-11")]


def test_without_a_manifest_it_is_hashed_and_not_exported_again(home: Path, tmp_path: Path, reads: list[str]) -> None:
    checkpoint = write_checkpoint(tmp_path / "run", manifest=False)
    assert states(Registry(home).add_run(tmp_path / "run")) == [(3, "added")]
    reads.clear()
    assert states(Registry(home).add_run(tmp_path / "run")) == [(3, "known")]
    assert reads == [str(checkpoint)]


def rewritten(checkpoint: Path) -> None:
    """Other weights of the same size, and a manifest that lists them."""
    file = checkpoint / "trainer.pt"
    other = write_checkpoint(checkpoint.parents[2] / "other", contents(lora_state(seed=77), iteration=2), iteration=2)
    shutil.copyfile(other / "trainer.pt", file)
    write_manifest(checkpoint)


def cut(checkpoint: Path) -> None:
    """A file of another size than the one that was exported."""
    os.truncate(checkpoint / "trainer.pt", 1000)


def moved(checkpoint: Path) -> None:
    """The checkpoint of another run, that tells its own name."""
    run = checkpoint.parents[1]
    (run / "config.json").write_text(json.dumps({**CONFIG, "run_id": "second"}))
    run.rename(run.with_name("second"))


@pytest.mark.parametrize(
    ("change", "state", "error"),
    [(rewritten, State.ADDED, None), (cut, State.REFUSED, ManifestMismatch), (moved, State.ADDED, None)],
)
def test_what_has_changed_is_read_again(
    change: Callable[[Path], None], state: State, error: type[Exception] | None, home: Path, tmp_path: Path
) -> None:
    (checkpoint,) = write_run(tmp_path / "run", 2)
    list(Registry(home).add_run(tmp_path / "run"))
    change(checkpoint)
    run = tmp_path / ("second" if change is moved else "run")
    (found,) = Registry(home).add_run(run)
    assert found.state is state
    assert error is None or isinstance(found.error, Refused)
    if change is moved:
        assert {export.run for export in Registry(home).show(str(found.digest)).exports} == {"run", "second"}


@pytest.mark.parametrize("options", [{"run": "mine"}, {"base": "org/other"}, {"alpha": 32.0}])
def test_what_was_exported_with_other_options_is_exported_again(
    options: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    saved = contents(lora_state(), alpha=None)
    run = tmp_path / "run"
    write_checkpoint(run, saved, config={})
    registry = Registry(home)
    assert states(registry.add_run(run, alpha=16.0)) == [(3, "added")]
    wish = {"alpha": 16.0, **options}
    assert states(registry.add_run(run, **wish)) == [(3, "added")]
    assert states(registry.add_run(run, **wish)) == [(3, "known")]
    assert states(registry.add_run(run, alpha=16.0)) == [(3, "known")]


def test_another_parent_is_another_export(run: Path, home: Path, tmp_path: Path) -> None:
    registry = Registry(home)
    parent = registry.add(plain(tmp_path / "a")).digest
    list(registry.add_run(run))
    assert states(registry.add_run(run, parent=str(parent))) == [(2, "added"), (9, "added"), (10, "added")]
    assert states(registry.add_run(run, parent=str(parent))) == [(2, "known"), (9, "known"), (10, "known")]


def test_what_was_removed_stays_away_until_it_is_named(run: Path, home: Path) -> None:
    registry = Registry(home)
    digests = [each.digest for each in registry.add_run(run)]
    registry.remove(str(digests[0]))
    found = list(registry.add_run(run))
    assert [(each.state, each.digest) for each in found] == [
        (State.REMOVED, digests[0]),
        (State.KNOWN, digests[1]),
        (State.KNOWN, digests[2]),
    ]
    assert registry.add(run / "ckpt" / "iter-2").digest == digests[0]
    assert states(registry.add_run(run)) == [(2, "known"), (9, "known"), (10, "known")]


def test_one_that_is_refused_stops_no_other(run: Path, home: Path) -> None:
    flip(run / "ckpt" / "iter-9" / "trainer.pt")
    found = {each.step: each for each in Registry(home).add_run(run)}
    assert [found[step].state for step in (2, 9, 10)] == [State.ADDED, State.REFUSED, State.ADDED]
    assert isinstance(found[9].error, Refused)
    flip(run / "ckpt" / "iter-9" / "trainer.pt")
    assert states(Registry(home).add_run(run)) == [(2, "known"), (9, "added"), (10, "known")]


@pytest.mark.parametrize("name", ["trainer.pt", "manifest.json"])
def test_one_that_is_being_written_is_incomplete(name: str, run: Path, home: Path) -> None:
    (run / "ckpt" / "iter-10" / name).unlink()
    found = list(Registry(home).add_run(run))
    assert [(each.step, each.state) for each in found[:2]] == [(2, State.ADDED), (9, State.ADDED)]
    assert found[2].state is State.INCOMPLETE
    assert found[2].reason in ("no tensors", "no trainer.pt", "no manifest, which others of the run have")


def test_one_without_a_manifest_that_others_of_the_run_have_is_refused_where_it_is_named(run: Path, home: Path) -> None:
    checkpoint = run / "ckpt" / "iter-10"
    (checkpoint / "manifest.json").unlink()
    for path in (checkpoint, checkpoint / "trainer.pt"):
        with pytest.raises(Refused, match="is not whole yet; found no manifest, which others of the run have"):
            Registry(home).add(path)
    assert not home.exists()


def test_a_run_without_any_manifest_is_taken(home: Path, tmp_path: Path) -> None:
    for step in (1, 2):
        saved = contents(lora_state(seed=step), iteration=step)
        write_checkpoint(tmp_path / "run", saved, iteration=step, manifest=False)
    assert states(Registry(home).add_run(tmp_path / "run")) == [(1, "added"), (2, "added")]


def test_one_that_goes_meanwhile_is_passed_over(run: Path, home: Path) -> None:
    found = Registry(home).add_run(run)
    assert next(found).state is State.ADDED
    shutil.rmtree(run / "ckpt" / "iter-9")
    assert states(found) == [(9, "incomplete"), (10, "added")]


def test_a_failing_registry_stops_it(run: Path, home: Path) -> None:
    registry = Registry(home)
    found = registry.add_run(run)
    next(found)
    shutil.rmtree(home / "adapters")
    (home / "adapters").write_text("in the way")
    with pytest.raises(StorageError):
        next(found)


def test_the_directory_of_the_checkpoints_is_the_run_too(run: Path, home: Path) -> None:
    assert states(Registry(home).add_run(run / "ckpt")) == [(2, "added"), (9, "added"), (10, "added")]


def test_no_run_is_not_found_and_two_kinds_are_refused(run: Path, home: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no checkpoints of a run"):
        list(Registry(home).add_run(tmp_path / "nothing"))
    transformers(run, 3, plain(tmp_path / "a"))
    with pytest.raises(Refused, match=r"more than one kind.*aorlta, peft"):
        list(Registry(home).add_run(run))
    assert not home.exists()


def test_an_index_that_is_missing_costs_only_time(run: Path, home: Path, reads: list[str]) -> None:
    list(Registry(home).add_run(run))
    for path in home.glob("index.sqlite*"):
        path.unlink()
    reads.clear()
    assert [state for _, state in states(Registry(home).add_run(run))] in (["known"] * 3, ["added"] * 3)


def test_known_tells_the_digest_of_what_is_there(run: Path, home: Path) -> None:
    registry = Registry(home)
    one = next(registry.add_run(run)).digest
    assert isinstance(one, Digest)
    assert next(registry.add_run(run)).digest == one


def test_a_name_that_can_be_none_is_not_waited_for(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    for name in ("x" * 5000, "file/run"):
        with pytest.raises(StorageError):
            Registry(home).watch(tmp_path / name, until_idle=0.0)
