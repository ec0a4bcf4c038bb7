"""`rm`, and `add` of what was removed, killed at every step that changes the disk, and the disk failing at every step.

Whatever happens, the next command finds the adapter present, whole and listed, or removed and not listed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from registry import Digest, NotFound, Registry
from registry.core.records import EXPORT, REMOVAL
from registry.store import LocalStore
from tests.support.process import CommandLine
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.strace import inject, killer, needs_strace
from tests.support.trees import contents as files_in

CHANGES = ("write", "rename", "unlink", "unlinkat", "rmdir", "fsync", "pwrite64")
SAMPLED = {"pwrite64": 3}  # SQLite's: one kill in so many calls


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], list[Digest]]:
    """A home with two adapters, of which the second is to be removed, and their checkpoints."""
    root = tmp_path_factory.mktemp("filled")
    checkpoints = [
        write_checkpoint(root / f"r{seed}", contents(lora_state(modules=MODULES[:1], seed=seed))) for seed in range(2)
    ]
    return root / "home", checkpoints, [Registry(root / "home").add(checkpoint).digest for checkpoint in checkpoints]


@pytest.fixture(scope="module")
def removed(filled: tuple[Path, list[Path], list[Digest]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same home after the second was removed."""
    home = tmp_path_factory.mktemp("removed") / "home"
    shutil.copytree(filled[0], home)
    Registry(home).remove(filled[2][1].hex)
    return home


def killed(call: str, prepare: Callable[[], tuple[str | Path, ...]]) -> Iterator[int]:
    """Run the command that `prepare` makes ready, killed in its first such call, in its second, until it is done."""
    with killer(call) as run:
        for number in count(1, SAMPLED.get(call, 1)):
            code = run(number, *prepare())
            assert code in (0, -9), (call, number, code)
            yield code
            if code == 0:
                return


def assert_sound(home: Path, kept: Digest, other: Digest) -> bool:
    """Whether `other` is there: whole and listed, and by the records; or not at all. Asked in any order."""
    store = LocalStore(str(home))
    notes: list[str] = []
    listed = {each.digest for each in Registry(home, note=notes.append).newest(9)}
    there = store.contains(other)
    assert listed == ({kept, other} if there else {kept})
    assert notes == []
    assert store.unsettled() == []
    registry = Registry(home)
    if there:
        assert registry.path(other.hex)
        shown = registry.show(other.hex)
        assert {each.record for each in shown.exports} == {each.digest for each in store.records(other, EXPORT)}
    else:
        with pytest.raises(NotFound, match="removed at"):
            registry.path(other.hex)
    done = registry.reindex()
    assert done.damaged == ()
    assert all(each.added == each.removed == each.changed == 0 for each in done.changes), done.changes
    return there


@needs_strace
@pytest.mark.parametrize("call", CHANGES)
def test_rm_killed_at_any_step_has_removed_it_or_not_and_can_be_repeated_and_undone(
    call: str, tmp_path: Path, filled: tuple[Path, list[Path], list[Digest]]
) -> None:
    (_, checkpoints, (kept, gone)), home, seen = filled, tmp_path / "home", []

    def prepare() -> tuple[str | Path, ...]:
        shutil.copytree(filled[0], home)
        return ("rm", gone.hex, "--home", home)

    for code in killed(call, prepare):
        seen.append(code)
        there = assert_sound(home, kept, gone)
        assert not (there and code == 0)
        if there:
            Registry(home).remove(gone.hex)
            assert not assert_sound(home, kept, gone)
        assert len(LocalStore(str(home)).records(gone, REMOVAL)) == 1
        assert Registry(home).add(checkpoints[1]).outcome == "added"
        assert assert_sound(home, kept, gone)
        with LocalStore(str(home)).stage():
            assert len(os.listdir(home / "staging")) == 1, "what a dead process left is swept"
        shutil.rmtree(home)
    assert seen.count(-9) > 0, f"no {call} was made"


@needs_strace
@pytest.mark.parametrize("call", ["rename", "unlink", "fsync", "pwrite64"])
def test_adding_what_was_removed_killed_at_any_step_leaves_it_whole_and_listed_or_gone(
    call: str, tmp_path: Path, removed: Path, filled: tuple[Path, list[Path], list[Digest]]
) -> None:
    (_, checkpoints, (kept, gone)), home, found = filled, tmp_path / "home", set()

    def prepare() -> tuple[str | Path, ...]:
        shutil.copytree(removed, home)
        return ("add", checkpoints[1], "--home", home)

    for code in killed(call, prepare):
        store = LocalStore(str(home))
        if store.contains(gone):
            assert Registry(home).path(gone.hex), "also before anything is mended"
        listed = {each.digest for each in Registry(home).newest(9)}
        assert listed == ({kept, gone} if store.contains(gone) else {kept})
        found.add((code, store.contains(gone)))
        assert Registry(home).add(checkpoints[1]).digest == gone
        assert assert_sound(home, kept, gone)
        assert len(store.records(gone, EXPORT)) == 2, "the old one, and one that is later than the removal"
        shutil.rmtree(home)
    assert (0, True) in found
    assert any(code == -9 for code, _ in found), f"no {call} was made"


@needs_strace
@pytest.mark.parametrize(
    ("call", "error", "when"),
    [
        ("mkdir", "ENOSPC", "1+"),
        ("mkdir", "EROFS", "2"),
        ("mkdir", "EACCES", "3+"),
        ("write", "ENOSPC", "1"),
        ("write", "EDQUOT", "2"),
        ("fsync", "EIO", "1"),
        ("fsync", "ENOSPC", "3+"),
        ("rename", "EACCES", "1"),
        ("rename", "EROFS", "2"),
        ("rename", "EACCES", "3"),
        ("pwrite64", "ENOSPC", "1+"),
        ("fdatasync", "EIO", "1+"),
    ],
)
def test_rm_on_a_failing_disk_exits_7_and_the_next_command_finds_it_removed_or_not(
    call: str, error: str, when: str, cli: CommandLine, filled: tuple[Path, list[Path], list[Digest]]
) -> None:
    kept, gone = filled[2]
    shutil.copytree(filled[0], cli.home)
    done = inject(cli, "rm", gone.hex, fault=f"{call}:error={error}:when={when}")
    assert (done.code, done.out) == (7, ""), done
    assert str(cli.home) in done.err
    assert "Traceback" not in done.err
    if assert_sound(cli.home, kept, gone):
        assert cli.ok("rm", gone.hex) == str(gone)
    assert not assert_sound(cli.home, kept, gone)


@needs_strace
@pytest.mark.parametrize("error", ["EACCES", "EIO"])
def test_files_that_cannot_be_deleted_at_once_are_out_of_sight_and_go_later(
    error: str, cli: CommandLine, filled: tuple[Path, list[Path], list[Digest]]
) -> None:
    kept, gone = filled[2]
    shutil.copytree(filled[0], cli.home)
    assert inject(cli, "rm", gone.hex, fault=f"unlinkat:error={error}:when=3+").code == 0
    assert files_in(cli.home / "staging")
    assert not assert_sound(cli.home, kept, gone)
    cli.ok("alias", "set", "any", kept.hex)
    assert not files_in(cli.home / "staging")


@needs_strace
@pytest.mark.parametrize("step", ["mkdir:1", "write:2", "fsync:2", "rename:1", "rename:2", "rename:3", "unlink:1"])
def test_interrupted_rm_exits_130_and_has_removed_it_or_not(
    step: str, cli: CommandLine, filled: tuple[Path, list[Path], list[Digest]]
) -> None:
    kept, gone = filled[2]
    shutil.copytree(filled[0], cli.home)
    call, number = step.split(":")
    done = inject(cli, "rm", gone.hex, fault=f"{call}:signal=INT:when={number}")
    assert (done.code, done.out) == (130, ""), done
    assert "Traceback" not in done.err
    assert_sound(cli.home, kept, gone)
