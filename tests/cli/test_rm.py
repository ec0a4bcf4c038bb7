"""`aorlta-reg rm`, and what commands say of an adapter that was removed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shelf
from tests.cli.test_imports import DATABASE, REPORTING
from tests.support.process import CommandLine

EVIL = "a\x1b[31m\x07\u202e\u2066\nz"


@pytest.fixture
def mine(shelf: Shelf, tmp_path: Path) -> Shelf:
    """A copy of the shelf, to be changed."""
    shutil.copytree(shelf.cli.home, tmp_path / "mine")
    return Shelf(CommandLine(tmp_path / "mine"), shelf.checkpoint, shelf.hex)


def test_rm_prints_the_digest_and_its_checkpoint_can_be_added_again(mine: Shelf) -> None:
    cli, digest = mine.cli, f"sha256:{mine.hex}"
    done = cli("rm", mine.hex[:8])
    assert (done.code, done.out) == (0, f"{digest}\n")
    assert re.fullmatch(r"removed: \d+\.\d KiB\n", done.err)
    assert not mine.directory.exists()
    assert cli.ok("list").count("\n") == 0
    for command in (("show",), ("path",), ("rm",), ("alias", "set", "prod")):
        done = cli(*command, mine.hex)
        assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
        assert "removed at" in done.err
        assert done.err.endswith(f"Add its checkpoint again: {mine.checkpoint / 'trainer.pt'}\n")
    assert cli.ok("add", mine.checkpoint) == digest
    assert cli.ok("path", mine.hex) == str(mine.directory)
    assert len(cli.ok("list").splitlines()) == 2


def test_rm_of_what_is_relied_on_exits_6_and_with_force_says_what_it_overrode(mine: Shelf) -> None:
    cli = mine.cli
    cli.ok("alias", "set", "prod", mine.hex)
    done = cli("rm", "prod")
    assert (done.code, done.out, done.err.count("\n")) == (6, "", 1)
    assert "alias prod" in done.err
    assert "alias remove" in done.err
    done = cli("rm", "prod", "--force")
    assert (done.code, done.err.splitlines()[1:]) == (0, ["  was relied on by alias prod"])
    assert cli("path", "prod").code == 3


def test_reason_that_a_terminal_would_obey_is_escaped(mine: Shelf) -> None:
    mine.cli.ok("rm", mine.hex, "--reason", EVIL)
    done = mine.cli("show", mine.hex)
    assert done.code == 3
    assert done.err.count("\n") == 1
    assert all(char.isprintable() for char in done.err.rstrip("\n"))
    assert "a\\x1b[31m\\x07\\u202e" in done.err
    assert EVIL in json.loads(mine.cli("show", mine.hex, "--json").err)["error"]["message"]


@pytest.mark.parametrize(("reference", "code"), [("0" * 64, 3), ("zzz@x", 2), ("nobody", 3), ("ab", 2)])
def test_rm_of_nothing_exits_with_its_code_and_makes_no_registry(reference: str, code: int, cli: CommandLine) -> None:
    done = cli("rm", reference)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert not cli.home.exists()


def test_asking_for_a_removed_adapter_by_digest_loads_no_database(mine: Shelf, tmp_path: Path) -> None:
    mine.cli.ok("rm", mine.hex)
    report = tmp_path / "modules.json"
    done = subprocess.run(
        [sys.executable, "-c", REPORTING, "path", mine.hex],
        env=mine.cli.environment(MODULES=str(report)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "removed at" in done.stderr
    loaded = {name.partition(".")[0] for name in json.loads(report.read_text())}
    assert "registry" in loaded
    assert not loaded & DATABASE
