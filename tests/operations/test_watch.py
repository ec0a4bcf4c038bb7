"""A run that is watched: each checkpoint is taken once it is whole, whatever happens meanwhile."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from registry import Refused, Registry
from tests.support.arrivals import Watch, write_run
from tests.support.loading import load_program
from tests.support.runs import contents, lora_state, write_checkpoint, write_manifest
from tests.support.taking import plain
from tests.support.trainers import transformers
from tests.support.users import ONE, common_ground, give, needs_root


def nothing() -> None:
    pass


def test_watch_takes_what_stays_as_it_is_for_two_looks(
    run: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (write_checkpoint(tmp_path / "made", contents(lora_state(seed=5))) / "trainer.pt").read_bytes()
    slow = run / "ckpt" / "iter-12"
    slow.mkdir()

    def write(data: bytes) -> Callable[[], Any]:
        def append() -> None:
            with (slow / "trainer.pt").open("ab") as file:
                file.write(data)

        return append

    taken = Watch(Registry(home), run, monkeypatch).through(
        *(write(whole[at : at + len(whole) // 4 + 1]) for at in range(0, len(whole), len(whole) // 4 + 1)),
        nothing,
        lambda: write_manifest(slow),
    )
    assert sorted(taken) == [(2, "added"), (9, "added"), (10, "added"), (12, "added"), (12, "incomplete")]
    assert taken.index((12, "incomplete")) < taken.index((12, "added"))


def test_watch_without_manifests_tells_a_refusal_once_and_tries_again_when_it_changes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path / "run", manifest=False)
    whole = (checkpoint / "trainer.pt").read_bytes()
    (checkpoint / "trainer.pt").write_bytes(whole[:1000])
    taken = Watch(Registry(home), tmp_path / "run", monkeypatch).through(
        nothing, nothing, nothing, nothing, lambda: (checkpoint / "trainer.pt").write_bytes(whole), nothing
    )
    assert taken == [(3, "refused"), (3, "added")]


def test_watch_goes_on_where_the_registry_is(
    run: Path, home: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    assert len(Watch(Registry(home), run, monkeypatch).through(nothing)) == 3
    reads.clear()
    write_run(run, 11)
    taken = Watch(Registry(home), run, monkeypatch).through(nothing)
    assert taken == [(2, "known"), (9, "known"), (10, "known"), (11, "added")]
    assert reads == [str(run / "ckpt" / "iter-11")]


def test_watch_waits_for_a_run_that_is_not_there(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    run = tmp_path / "later"
    later = Watch(Registry(home, note=notes.append), run, monkeypatch)
    assert later.through(nothing, lambda: write_run(run, 4), nothing) == [(4, "added")]
    assert notes == [f"{run} is not there yet"]


def test_watch_rides_out_a_registry_that_fails_for_a_while(
    run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    registry = Registry(home, note=notes.append)
    registry.upgrade_index()
    (home / "adapters").write_text("in the way")
    taken = Watch(registry, run, monkeypatch).through(nothing, nothing, (home / "adapters").unlink, nothing)
    assert taken == [(2, "added"), (9, "added"), (10, "added")]
    (note,) = notes
    assert "adapters" in note
    assert note.endswith("It is tried again at every look")


def test_watch_ends_when_nothing_has_changed(run: Path, home: Path, tmp_path: Path) -> None:
    (run / "ckpt" / "iter-99").mkdir()
    found = list(Registry(home).watch(run, every=0.01, until_idle=0.2))
    assert [(each.step, each.state.value) for each in found] == [
        (2, "added"),
        (9, "added"),
        (10, "added"),
        (99, "incomplete"),
    ]
    assert list(Registry(home).watch(tmp_path / "nothing", every=0.01, until_idle=0.05)) == []


@pytest.mark.parametrize(
    "times", [{"every": time} for time in (0.0, -1.0, math.nan, math.inf, 1e300)] + [{"until_idle": -1.0}]
)
def test_times_that_cannot_be_are_refused(times: dict[str, float], run: Path, home: Path) -> None:
    with pytest.raises(Refused, match="no such time"):
        Registry(home).watch(run, **times)


def test_a_checkpoint_is_not_watched(run: Path, home: Path, tmp_path: Path) -> None:
    for path in (run / "ckpt" / "iter-2", run / "ckpt" / "iter-2" / "trainer.pt", plain(tmp_path / "a")):
        with pytest.raises(Refused, match="not the directory of a run"):
            Registry(home).watch(path)


def test_a_run_with_an_adapter_beside_its_checkpoints_is_watched(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers save the last adapter in the run's own directory, right after the last checkpoint."""
    run, final = tmp_path / "run", plain(tmp_path / "a")
    transformers(run, 10, final)

    def end() -> None:
        transformers(run, 20, final)
        shutil.copytree(final, run, dirs_exist_ok=True)

    taken = Watch(Registry(home), run, monkeypatch).through(nothing, end, nothing)
    assert taken == [(10, "added"), (20, "added")]
    assert Watch(Registry(home), run, monkeypatch).through(nothing) == [(10, "known"), (20, "known")]


def again_in_place(checkpoint: Path, other: Path) -> None:
    shutil.copyfile(other / "trainer.pt", checkpoint / "trainer.pt")
    write_manifest(checkpoint)


def again_from_nothing(checkpoint: Path, other: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(other, checkpoint)


@pytest.mark.parametrize("write", [again_in_place, again_from_nothing])
def test_a_step_that_a_resumed_run_writes_anew_is_taken_again(
    write: Callable[[Path, Path], None], run: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_checkpoint(tmp_path / "other", contents(lora_state(seed=77), iteration=9), iteration=9)
    watch = Watch(Registry(home), run, monkeypatch)
    taken = watch.through(nothing, nothing, lambda: write(run / "ckpt" / "iter-9", other), nothing)
    assert taken == [(2, "added"), (9, "added"), (10, "added"), (9, "added")]
    assert watch.found[1].digest != watch.found[3].digest


@pytest.mark.parametrize(("seed", "more"), [(2, []), (77, [(2, "refused")])])
def test_a_manifest_that_comes_late_is_held_against_what_was_taken(
    seed: int, more: list[tuple[int, str]], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [
        write_checkpoint(tmp_path / name, contents(lora_state(seed=of), iteration=2), iteration=2, manifest=late)
        for name, of, late in (("run", 2, False), ("whole", seed, True))
    ]

    def come() -> None:
        shutil.copyfile(written[1] / "manifest.json", written[0] / "manifest.json")

    taken = Watch(Registry(home), tmp_path / "run", monkeypatch).through(nothing, nothing, come, nothing)
    assert taken == [(2, "added"), *more]


def test_a_failing_registry_is_asked_once_a_look_and_told_once_until_it_has_recovered(
    run: Path, home: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    notes: list[str] = []
    registry = Registry(home, note=notes.append)
    registry.upgrade_index()

    def fail() -> None:
        (home / "staging").write_text("in the way")

    def fail_again() -> None:
        (home / "staging").rename(home / "away")
        fail()
        write_run(run, 11)

    fail()
    recover = (home / "staging").unlink
    taken = Watch(registry, run, monkeypatch).through(nothing, nothing, nothing, recover, nothing, fail_again, nothing)
    assert taken == [(2, "added"), (9, "added"), (10, "added")]
    assert len(notes) == 2, "once for each time that it failed"
    times = {step: reads.count(str(run / "ckpt" / f"iter-{step}")) for step in (2, 9, 10)}
    assert times == {2: 4, 9: 1, 10: 1}, "while it fails, one checkpoint a look"


def test_what_waits_for_its_second_look_is_waited_for(run: Path, home: Path) -> None:
    found = list(Registry(home).watch(run, every=0.01, until_idle=0))
    assert [each.state.value for each in found] == ["added"] * 3


@needs_root
def test_what_could_not_be_read_is_tried_again_though_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    load_program()
    with common_ground() as ground:
        (checkpoint,) = write_run(ground / "run", 4)
        give(ground, ONE)
        file = checkpoint / "trainer.pt"
        file.chmod(0)
        os.seteuid(ONE.uid)
        try:
            taken = Watch(Registry(ground / "home"), ground / "run", monkeypatch).through(
                nothing, nothing, nothing, lambda: file.chmod(0o600)
            )
        finally:
            os.seteuid(0)
    assert taken == [(4, "refused"), (4, "added")]


def test_a_watched_run_goes_into_the_index_that_is_there(
    run: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command may have set the index aside meanwhile, and made a new one."""

    def replace() -> None:
        for path in home.glob("index.sqlite*"):
            path.rename(path.with_name(f"aside-{path.name}"))
        assert len(Registry(home).newest(10)) == 3
        write_run(run, 11)

    Watch(Registry(home), run, monkeypatch).through(nothing, replace, nothing)
    assert len(Registry(home).newest(10)) == 4
