"""What a local store asks of the disk, step by step: nothing is named before it is on the disk, and nothing is told of
before its name is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.core import records
from registry.store import LocalStore
from tests.store.contract import A

Steps = list[tuple[str, ...]]


@pytest.fixture
def steps(home: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Every sync, rename and deletion from here on, in order; of what is in staging, only the last part of the name."""
    found: Steps = []
    fsync, rename, unlink, rmdir = os.fsync, os.rename, os.unlink, os.rmdir

    def named(path: str) -> str:
        below = os.path.relpath(path, home)
        return below if not below.startswith("staging/") else "/".join(["staging", "~", *below.split("/")[2:]])

    def noted_fsync(descriptor: int) -> None:
        found.append(("sync", named(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def noted_rename(source: str, target: str) -> None:
        found.append(("rename", named(source), named(target)))
        rename(source, target)

    def noted(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def called(path: str, *, dir_fd: int | None = None) -> None:
            within = path if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
            found.append((name, named(within)))
            real(path, dir_fd=dir_fd)

        return called

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    monkeypatch.setattr(os, "unlink", noted("unlink", unlink))
    monkeypatch.setattr(os, "rmdir", noted("rmdir", rmdir))
    return found


@pytest.fixture
def store(home: Path) -> LocalStore:
    """One that has all its directories, of which it is known that they last."""
    made = LocalStore(str(home))
    put(made)
    made.set_aside(A)
    record = records.make(records.ALIAS, A, {"n": 0})
    made.put_record(record)
    made.settle(record)
    return made


def put(store: LocalStore) -> None:
    with store.stage() as stage:
        stage.files.write("one", [b"1"])
        stage.files.write("two", [b"2"])
        assert stage.publish(A)


PLACE, FINAL, RECORDS = f"adapters/{A.hex[:2]}", f"adapters/{A.hex[:2]}/{A.hex}", f"records/{A.hex[:2]}/{A.hex}"
STAGED: Steps = [("sync", "staging/~/one"), ("sync", "staging/~/two"), ("sync", "staging/~")]
PUBLISHED: Steps = [*STAGED, ("rename", "staging/~", FINAL), ("sync", PLACE)]


def test_adapter_is_on_the_disk_before_it_has_its_name_and_its_name_before_anyone_is_told(
    store: LocalStore, steps: Steps
) -> None:
    put(store)
    assert steps == PUBLISHED


def test_every_directory_that_publishing_makes_is_linked_durably_into_its_parent(home: Path, steps: Steps) -> None:
    put(LocalStore(str(home)))
    assert steps[:2] == [("sync", ".."), ("sync", ".")], "home and staging"
    assert steps[2:4] == [("sync", "."), ("sync", "adapters")]
    assert steps[4:] == PUBLISHED


def test_directory_that_a_killed_process_made_is_linked_durably_by_the_next_one_once(home: Path, steps: Steps) -> None:
    (home / PLACE).mkdir(parents=True)
    store = LocalStore(str(home))
    for expected in ([("sync", "."), ("sync", "adapters")], []):
        steps.clear()
        store.make_shard(A)
        assert steps == expected


def test_bad_copy_is_kept_durably_before_the_good_one_takes_its_place(store: LocalStore, steps: Steps) -> None:
    put(store)
    steps.clear()
    with store.stage() as stage:
        stage.files.write("one", [b"1"])
        stage.files.write("two", [b"2"])
        stage.replace(A)
    moved, kept, *rest = steps
    assert (moved[:2], moved[2].startswith(f"quarantine/{A.hex}-")) == (("rename", FINAL), True)
    assert kept == ("sync", "quarantine")
    assert rest == PUBLISHED


def test_removed_adapter_is_out_of_sight_durably_before_its_files_go(store: LocalStore, steps: Steps) -> None:
    put(store)
    steps.clear()
    assert store.remove(A)
    assert steps[:2] == [("rename", FINAL, f"staging/~/{A.hex}"), ("sync", PLACE)]
    deleted = [("unlink", f"staging/~/{A.hex}/{name}") for name in ("one", "two")]
    assert sorted(steps[2:4]) == deleted
    assert steps[4:] == [("rmdir", f"staging/~/{A.hex}"), ("rmdir", "staging/~")]


def test_record_is_announced_durably_and_then_recorded_durably(store: LocalStore, steps: Steps) -> None:
    record = records.make(records.EXPORT, A, {"n": 1})
    store.put_record(record)
    expected: Steps = []
    for place in ("pending", RECORDS):
        expected += [("sync", "staging/~/record.json"), ("rename", "staging/~/record.json", f"{place}/{record.name}")]
        expected += [("rmdir", "staging/~"), ("sync", place)]
    assert steps == expected


@pytest.mark.parametrize("place", ["pending", "records"])
def test_record_is_read_only_wherever_it_lies(place: str, store: LocalStore, home: Path) -> None:
    record = records.make(records.EXPORT, A, {"n": 1})
    before = os.umask(0o027)
    try:
        store.put_record(record)
    finally:
        os.umask(before)
    (path,) = (home / place).rglob(record.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o440
