"""A registry that several users of one group write to, and what each umask gives to whom."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from registry import Registry
from registry.store import LocalStore
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.users import GROUP, ONE, OTHER, STRANGER, common_ground, give, needs_root, results

TOGETHER = 0o002


@pytest.fixture
def ground() -> Iterator[Path]:
    with common_ground() as ground:
        yield ground


@pytest.fixture
def shared(ground: Path) -> CommandLine:
    """An empty home that belongs to the group, as `mkdir -m 2775` and `chgrp` make it."""
    (ground / "home").mkdir()
    give(ground / "home", ONE, group=GROUP, mode=0o2775)
    return CommandLine(ground / "home")


def checkpoints(ground: Path, count: int) -> list[Path]:
    return [write_checkpoint(ground / f"run{n}", contents(lora_state(seed=n))) for n in range(count)]


def kinds(home: Path) -> dict[str, set[tuple[int, int]]]:
    """Group and mode of all directories, of the store's files, and of the index's."""
    found: dict[str, set[tuple[int, int]]] = {"directories": set(), "stored": set(), "index": set()}
    for path in home.rglob("*"):
        status = path.lstat()
        what = "directories" if path.is_dir() else "index" if path.name.startswith("index.") else "stored"
        found[what].add((status.st_gid, stat.S_IMODE(status.st_mode)))
    return found


@needs_root
def test_two_users_of_a_group_add_move_aliases_and_reindex_in_one_registry(shared: CommandLine, ground: Path) -> None:
    runs = checkpoints(ground, 4)
    users = [replace(user, umask=TOGETHER) for user in (ONE, OTHER)]
    work = [
        [
            ("add", run),
            ("alias", "set", f"best{number}", "run0@3") if number else ("list",),
            ("add", *runs),
            ("reindex",),
        ]
        for number, run in enumerate(runs[:2])
    ]
    processes = [user.start(shared, *commands) for user, commands in zip(users, work, strict=True)]
    first, second = map(results, processes)
    for done in (*first, *second[:1], *second[2:]):
        assert done.code == 0, done
    assert second[1].code in (0, 3), "the other's adapter may not have been there yet"
    again = users[1].run(shared, ("alias", "set", "prod", "run0@3"), ("alias", "remove", "prod"), ("add", *runs))
    assert [done.code for done in again] == [0, 0, 0], again
    assert kinds(shared.home) == {
        "directories": {(GROUP, 0o2775)},
        "stored": {(GROUP, 0o444)},
        "index": {(GROUP, 0o664)},
    }
    registry = Registry(shared.home)
    assert len(registry.newest(9)) == len(runs)
    assert {move.moved_by.partition("@")[0] for move in registry.alias_history("prod")} == {f"uid-{OTHER.uid}"}
    assert LocalStore(str(shared.home)).unsettled() == []
    assert not list((shared.home / "staging").iterdir())


@needs_root
def test_one_user_of_a_group_replaces_the_damaged_adapter_that_another_added(shared: CommandLine, ground: Path) -> None:
    (run,) = checkpoints(ground, 1)
    (added,) = replace(ONE, umask=TOGETHER).run(shared, ("add", run))
    (weights,) = shared.home.glob("adapters/*/*/adapter_model.safetensors")
    weights.chmod(0o644)
    weights.write_bytes(b"damaged")
    repaired, path = replace(OTHER, umask=TOGETHER).run(shared, ("add", run), ("path", added.out.strip()))
    assert (repaired.code, path.code) == (0, 0), repaired
    assert "repaired" in repaired.err
    assert len(list((shared.home / "quarantine").iterdir())) == 1


@needs_root
@pytest.mark.parametrize(
    ("umask", "directories", "stored", "index"),
    [(0o000, 0o777, 0o444, 0o666), (0o027, 0o750, 0o440, 0o640), (0o077, 0o700, 0o400, 0o600)],
)
def test_umask_of_who_makes_a_registry_says_who_reads_it(
    umask: int, directories: int, stored: int, index: int, ground: Path
) -> None:
    (run,) = checkpoints(ground, 1)
    (ground / "mine").mkdir()
    give(ground / "mine", ONE)
    cli = CommandLine(ground / "mine" / "home")
    owner = replace(ONE, umask=umask)
    (ground / "mine").chmod(0o777)
    out = ground / "mine"
    added, got, exported = owner.run(
        cli, ("add", run), ("get", "run0@3", "--to", out / "got"), ("export", run, "--out", out / "exported")
    )
    assert [done.code for done in (added, got, exported)] == [0, 0, 0], (added, got, exported)
    assert kinds(cli.home) == {
        "directories": {(ONE.gid, directories)},
        "stored": {(ONE.gid, stored)},
        "index": {(ONE.gid, index)},
    }
    for directory in (out / "got", out / "exported"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o777 & ~umask
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o666 & ~umask}
    listed, path = STRANGER.run(cli, ("list",), ("path", added.out.strip()))
    if umask:
        for done in (listed, path):
            assert (done.code, done.out) == (7, ""), done
            assert done.err.startswith("aorlta-reg: ")
            assert "permission" in done.err
            assert done.err.count("\n") == 1
    else:
        assert (listed.code, path.code) == (0, 0), (listed, path)


@needs_root
def test_stored_files_of_another_user_that_may_be_read_are_as_good_as_ones_own(ground: Path) -> None:
    (run,) = checkpoints(ground, 1)
    cli = CommandLine(ground / "home")
    digest = cli.ok("add", run)
    give(cli.home, ONE)
    for path in cli.home.glob("adapters/*/*/*"):
        os.chown(path, OTHER.uid, OTHER.gid)
    again, path_, set_ = ONE.run(cli, ("add", run), ("path", digest), ("alias", "set", "prod", digest))
    assert [done.code for done in (again, path_, set_)] == [0, 0, 0], (again, path_, set_)
    assert "already present" in again.err
