"""A slice of the soak in every run, and that its checker sees what it is there to see."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from registry import Registry
from tests.soak.commands import ROWS, World, make_world
from tests.soak.crowd import crowd
from tests.soak.invariants import CORRUPT, FAILED, LITTER, LOST, Promises, check, check_output, readable
from tests.support.strace import needs_strace
from tests.support.trees import flip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def home(world: World, tmp_path: Path) -> Path:
    return shutil.copytree(world.filled, tmp_path / "home")


@needs_strace
@pytest.mark.slow
def test_slice_of_kills_faults_and_a_crowd_loses_nothing_and_hands_out_nothing_corrupt() -> None:
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.1", "--points", "3", "--processes", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (summary["kills"], summary["faults"]) == (3, 3)
    assert summary["operations"] > 0
    assert summary["reads"] > 0
    assert [summary[kind] for kind in (LOST, CORRUPT, LITTER, FAILED)] == [0, 0, 0, 0]


@pytest.mark.slow
def test_sixteen_commands_at_once_lose_no_move_no_score_and_no_adapter(world: World, tmp_path: Path) -> None:
    done = crowd(world, tmp_path, seed=1, seconds=2, processes=16)
    assert done.findings == []
    assert done.operations.keys() == {
        *("add", "alias", "gc", "get", "list", "read", "reindex", "rm", "score", "verify", "verify --repair")
    }
    assert done.reads > 0


def weights(home: Path, digest: str) -> Path:
    return Path(Registry(home).path(digest)) / "adapter_model.safetensors"


def lose_adapter(home: Path, world: World) -> None:
    shutil.rmtree(weights(home, world.digests["c"]).parent)


def damage_adapter(home: Path, world: World) -> None:
    flip(weights(home, world.digests["c"]))


def damage_record(home: Path, _world: World) -> None:
    flip(next(home.glob("records/*/*/export-*.json")))


def move_alias(home: Path, world: World) -> None:
    Registry(home).set_alias("prod", world.digests["c"])


def leave_staging(home: Path, _world: World) -> None:
    (home / "staging" / "left").mkdir()


def leave_pending(home: Path, world: World) -> None:
    """Of an adapter that was never published."""
    other = Registry(home.parent / "other")
    other.add(world.checkpoints["d"])
    shutil.copy(next((home.parent / "other").glob("records/*/*/export-*.json")), home / "pending")


def lose_record(home: Path, _world: World) -> None:
    next(home.glob("records/*/*/alias-*.json")).unlink()


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (lose_adapter, LOST),
        (damage_adapter, CORRUPT),
        (damage_record, FAILED),
        (move_alias, LOST),
        (leave_staging, LITTER),
        (leave_pending, LITTER),
        (lose_record, LOST),
    ],
)
def test_checker_finds_what_was_broken_on_purpose(
    break_it: Callable[[Path, World], None], kind: str, home: Path, world: World
) -> None:
    row = next(row for row in ROWS if row.name == "reindex")
    assert check(home, row.after(world)) == []
    break_it(home, world)
    assert kind in {finding.kind for finding in check(home, row.after(world))}


def test_checker_misses_a_move_a_score_a_removal_and_an_export_that_were_promised(home: Path, world: World) -> None:
    digest = world.digests["a"]
    for promises in (
        Promises(moves={("prod", digest)}),
        Promises(scores={digest}),
        Promises(removals={(digest, digest)}),
        Promises(exports={(digest, digest)}),
        Promises(removed={digest}),
        Promises(parents={(digest, world.digests["c"])}),
    ):
        assert [finding.kind for finding in check(home, promises)] == [LOST]


def test_reader_reports_damage_unless_it_was_announced(home: Path, world: World) -> None:
    damage_adapter(home, world)
    assert [finding.kind for finding in readable(home)[1]] == [CORRUPT]
    assert readable(home, damaged=[world.digests["c"]]) == (2, [])


def test_half_an_output_is_corrupt_and_what_lies_beside_it_is_litter(home: Path, world: World, tmp_path: Path) -> None:
    out = tmp_path / "outputs" / "out"
    out.parent.mkdir()
    Registry(home).get(world.digests["a"], out)
    assert check_output(out, [world.digests["a"]]) == []
    assert [finding.kind for finding in check_output(out, [world.digests["c"]])] == [CORRUPT]
    (out / "adapter_config.json").unlink()
    (out.parent / "other").touch()
    (out.parent / "out.partial").mkdir()
    assert [finding.kind for finding in check_output(out, [world.digests["a"]])] == [LITTER, CORRUPT]
