"""Many processes at once on a registry that none of them finds made."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from registry import IntegrityError, NotFound, Registry
from registry.core.records import EXPORT
from registry.store import LocalStore
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import flip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five checkpoints that give three adapters."""
    root = tmp_path_factory.mktemp("runs")
    return [
        write_checkpoint(root / f"run{number}", contents(lora_state(seed=seed), iteration=number), config={})
        for number, seed in enumerate((0, 0, 1, 1, 2))
    ]


def test_twelve_processes_adding_at_once_to_a_fresh_home_all_succeed(cli: CommandLine, checkpoints: list[Path]) -> None:
    wanted = [checkpoints[number % 5] for number in range(12)]
    processes = [cli.start("add", checkpoint) for checkpoint in wanted]
    store, digests = LocalStore(str(cli.home)), set()
    while any(process.poll() is None for process in processes):
        for digest in store.digests():  # a reader beside them never meets a part of an adapter
            assert Registry(cli.home).path(str(digest))
        time.sleep(0.02)
    for process in processes:
        stdout, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert "locked" not in stderr
        digests.add(stdout.strip())
    registry = Registry(cli.home)
    adapters = registry.newest(99)
    assert {str(adapter.digest) for adapter in adapters} == digests == {str(digest) for digest in store.digests()}
    assert len(adapters) == 3
    assert sorted(len({export.checkpoint for export in adapter.exports}) for adapter in adapters) == [1, 2, 2]
    for adapter in adapters:
        assert {export.record for export in adapter.exports} <= {
            each.digest for each in store.records(adapter.digest, EXPORT)
        }
    assert not list((cli.home / "staging").iterdir())
    assert not (cli.home / "quarantine").exists()


def test_readers_during_repairs_see_the_damaged_adapter_the_sound_one_or_none(
    cli: CommandLine, checkpoints: list[Path]
) -> None:
    registry = Registry(cli.home)
    digest = registry.add(checkpoints[0]).digest.hex
    flip(Path(registry.path(digest)) / "adapter_model.safetensors")
    process = cli.start("add", checkpoints[0])
    while process.poll() is None:
        try:
            directory = Path(Registry(cli.home).path(digest))
        except (NotFound, IntegrityError):
            continue
        assert directory.is_dir()
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout.strip() == f"sha256:{digest}"
    assert registry.path(digest)
