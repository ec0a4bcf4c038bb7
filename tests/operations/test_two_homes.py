"""One registry is one directory. Under several names, and from several hosts, it is the same registry; two homes that
share a store and have an index each are refused before anything is written to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from registry import IntegrityError, Registry
from registry.store import LocalStore
from tests.support.mounts import needs_mounts, run_mounted
from tests.support.process import CommandLine
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.trees import snapshot

SHARED = ("adapters", "records")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [
        write_checkpoint(root / f"r{seed}", contents(lora_state(modules=MODULES[:1], seed=seed))) for seed in range(2)
    ]


@pytest.fixture
def first(runs: list[Path], tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "first")
    registry.add(runs[0], alias="prod")
    return registry


def test_moves_and_adds_by_two_names_of_one_home_at_once_are_all_kept(
    first: Registry, runs: list[Path], tmp_path: Path
) -> None:
    other = first.add(runs[1]).digest.hex
    before = str(first.resolve("prod").hex)
    (tmp_path / "second").symlink_to(first.home)
    names = [CommandLine(Path(first.home)), CommandLine(tmp_path / "second")]
    started = [
        names[number % 2].start(*command)
        for number, command in enumerate(
            [("alias", "set", "prod", other), ("add", *runs), ("alias", "set", "prod", before), ("add", *runs)] * 2
        )
    ]
    told = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * len(started), told
    moves = first.alias_history("prod")
    assert [move.sequence for move in moves] == [*range(1, len(moves) + 1)]
    assert all(one.after == two.before for one, two in pairwise(moves))
    assert sorted(each.digest.hex for each in first.newest(9)) == sorted((before, other))
    assert LocalStore(str(first.home)).unsettled() == []


ATTEMPTS: dict[str, Callable[[Registry, str, Path], object]] = {
    "list": lambda second, *_: second.newest(1),
    "path": lambda second, digest, _: second.path(digest),
    "add": lambda second, _, run: second.add(run),
    "alias": lambda second, digest, _: second.set_alias("best", digest),
    "reindex": lambda second, *_: second.reindex(),
    "verify": lambda second, *_: second.verify(),
    "remove": lambda second, digest, _: second.remove(digest, force=True),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_second_home_that_links_to_the_store_of_the_first_is_refused_and_changes_nothing(
    attempt: str, first: Registry, runs: list[Path], tmp_path: Path
) -> None:
    digest, second = first.resolve("prod").hex, tmp_path / "second"
    second.mkdir()
    for name in SHARED:
        (second / name).symlink_to(Path(first.home) / name)
    before = snapshot(Path(first.home))
    with pytest.raises(IntegrityError, match="is a link, and is not followed"):
        ATTEMPTS[attempt](Registry(second), digest, runs[1])
    assert snapshot(Path(first.home)) == before


@needs_mounts
@pytest.mark.parametrize("command", ["add", "alias"])
def test_second_home_into_which_the_store_of_the_first_is_mounted_publishes_nothing_in_it_and_is_told_why(
    command: str, first: Registry, runs: list[Path], tmp_path: Path
) -> None:
    """A mount cannot be told from a directory; but nothing is renamed from one to another."""
    second = CommandLine(tmp_path / "second")
    for name in SHARED:
        (second.home / name).mkdir(parents=True)
    mounts = "\n".join(f"mount --bind '{first.home}/{name}' '{second.home}/{name}'" for name in SHARED)
    arguments = {"add": str(runs[1]), "alias": f"set best {first.resolve('prod').hex}"}[command]
    listed = {digest.hex for digest in LocalStore(str(first.home)).digests()}
    done = run_mounted(second, mounts, f"exec $REG {command} {arguments}")
    assert (done.code, done.out) == (7, ""), done
    assert "HOME is one directory of one file system" in done.err
    assert {digest.hex for digest in LocalStore(str(first.home)).digests()} == listed
    verified = first.verify()
    assert verified.findings == ()
    assert [move.name for move in first.aliases()] == ["prod"]
