"""Two hosts on one shared directory: what is supported is one home, under whatever path each host knows it; two homes
over one store would be two indexes of which each lacks what the other added, and are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry import Registry
from registry.store import LocalStore
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import contents as files_in


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [write_checkpoint(tmp_path / f"run{n}", contents(lora_state(seed=n))) for n in range(3)]


def test_two_hosts_with_one_home_under_two_paths_lose_nothing(tmp_path: Path, runs: list[Path]) -> None:
    home = tmp_path / "export" / "home"
    home.mkdir(parents=True)
    (tmp_path / "mounted").symlink_to(home.parent)
    hosts = [CommandLine(home), CommandLine(tmp_path / "mounted" / "home")]
    processes = [host.start("add", *order) for host, order in zip(hosts, (runs, runs[::-1]), strict=True)]
    digests = set()
    for process in processes:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        digests.add(frozenset(stdout.split()))
    assert len(digests) == 1, "both print the same adapters"
    moved = [host.start("alias", "set", "prod", f"run{n}@3") for n, host in enumerate(hosts)]
    for process in moved:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    first, second = (Registry(host.home) for host in hosts)
    assert first.newest(9) == second.newest(9)
    assert {str(adapter.digest) for adapter in first.newest(9)} == set(*digests)
    history = first.alias_history("prod")
    assert second.alias_history("prod") == history
    assert [move.before for move in history] == [None, history[0].after]
    assert LocalStore(str(home)).unsettled() == []


@pytest.mark.parametrize("shared", ["adapters", "records"])
def test_second_home_over_the_store_of_another_is_refused_and_nothing_changes(
    shared: str, tmp_path: Path, runs: list[Path]
) -> None:
    first, second = CommandLine(tmp_path / "first"), CommandLine(tmp_path / "second")
    first.ok("add", runs[0])
    second.home.mkdir()
    (second.home / shared).symlink_to(first.home / shared)
    before = files_in(first.home)
    for command in (("add", runs[1]), ("verify", "--all"), ("reindex",)):
        done = second(*command)
        assert done.code == 5, (command, done)
        assert f"{second.home / shared}: is a link" in done.err
    assert files_in(first.home) == before
