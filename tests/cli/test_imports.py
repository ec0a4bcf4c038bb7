"""What each command loads: the real command, which then reports the modules of its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shelf
from tests.support.merging import factors
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.scoring import result_of, write_score_run
from tests.support.taking import Q, pickled, plain

REPORTING = """
import atexit, json, os, sys
atexit.register(lambda: json.dump(sorted(sys.modules), open(os.environ["MODULES"], "w")))
from registry.cli import main
main()
"""
NEVER = {"torch", "peft", "numpy", "safetensors", "transformers", "matplotlib"}
DATABASE = {"sqlalchemy", "alembic", "sqlite3"}


def loaded(shelf: Shelf, arguments: list[str | Path], report: Path) -> set[str]:
    """The top-level packages in the process of a command that succeeded, and its submodules of `registry`."""
    subprocess.run(
        [sys.executable, "-c", REPORTING, *map(str, arguments)],
        env=shelf.cli.environment(MODULES=str(report)),
        capture_output=True,
        check=True,
    )
    modules = json.loads(report.read_text())
    assert "registry.cli.app" in modules, "the report comes from the command's own process"
    return {name.partition(".")[0] for name in modules} | {name for name in modules if name.startswith("registry.")}


@pytest.mark.parametrize(
    "command",
    [
        "add",
        "add again",
        "add a run",
        "watch",
        "add peft",
        "add pickled peft",
        "export",
        "export peft",
        "get",
        "get for an engine",
        "path",
        "view",
        "view of a run",
        "show",
        "list",
        "path of a run",
        "alias",
        "reindex",
        "score add",
        "score list",
        "lineage",
        "find",
        "verify",
        "gc",
        "rm",
    ],
)
def test_command_loads_only_what_it_needs(command: str, shelf: Shelf, tmp_path: Path) -> None:
    new = write_checkpoint(tmp_path / "new", contents(lora_state(seed=9)))
    arguments: dict[str, list[str | Path]] = {
        "add": ["add", new, "--home", tmp_path / "home"],
        "add again": ["add", shelf.checkpoint],
        "add a run": ["add", shelf.checkpoint.parents[1]],
        "watch": ["watch", shelf.checkpoint.parents[1], "--every", "0.1", "--until-idle", "0.1"],
        "add peft": ["add", plain(tmp_path / "peft")],
        "add pickled peft": ["add", pickled(tmp_path / "pickled", factors(Q))],
        "export": ["export", new, "--out", tmp_path / "out"],
        "export peft": ["export", plain(tmp_path / "peft"), "--out", tmp_path / "out"],
        "get": ["get", shelf.hex[:6], "--to", tmp_path / "out"],
        "get for an engine": ["get", shelf.hex, "--to", tmp_path / "out", "--for", "vllm", "--base-name", "base"],
        "path": ["path", shelf.hex],
        "view": ["view", tmp_path / "out", shelf.hex, "--for", "vllm"],
        "view of a run": ["view", tmp_path / "out", "--run", "run", "--for", "vllm"],
        "show": ["show", shelf.hex],
        "list": ["list"],
        "path of a run": ["path", "run@3"],
        "verify": ["verify", "--all"],
        "gc": ["gc", "--keep-last", "9"],
        "alias": ["alias", "list"],
        "lineage": ["lineage", shelf.hex],
        "reindex": ["reindex"],
        "score add": ["score", "add", write_score_run(tmp_path / "eval", result_of("run@3"))],
        "score list": ["score", "list", shelf.hex],
        "rm": ["rm", shelf.hex, "--force"],  # the last one: the shelf is empty afterwards
        "find": ["find", "--run", "run", "--checkpoint", shelf.checkpoint, "--score", "x>1"],
    }
    modules = loaded(shelf, arguments[command], tmp_path / "modules.json")
    assert not modules & NEVER
    if command in ("get", "get for an engine", "path", "view", "export", "export peft"):
        assert not modules & (DATABASE | {"rich", "registry.index"})
    else:
        assert "sqlalchemy" in modules, "or this test could not see it"
    if command not in ("add", "verify"):  # verify makes one to compare with
        assert "alembic" not in modules, "only making or upgrading an index needs it"


def test_importing_the_package_loads_no_third_party_module() -> None:
    report = "import registry, sys; print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    bare = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-S", "-c", report], env=bare, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"registry", "__main__"}
