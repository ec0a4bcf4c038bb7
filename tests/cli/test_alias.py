"""`aorlta-reg alias`, and aliases and RUN@ITER as references."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Shelf
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint


@pytest.fixture
def mine(shelf: Shelf, tmp_path: Path) -> Shelf:
    """A copy of the shelf, to be changed."""
    shutil.copytree(shelf.cli.home, tmp_path / "mine")
    return Shelf(CommandLine(tmp_path / "mine"), shelf.checkpoint, shelf.hex)


def test_alias_is_set_shown_listed_told_and_removed(mine: Shelf) -> None:
    cli, digest = mine.cli, f"sha256:{mine.hex}"
    done = cli("alias", "set", "prod", mine.hex[:8])
    assert (done.code, done.out, done.err) == (0, f"{digest}\n", f"prod: none -> {digest}\n")
    assert cli("alias", "set", "prod", "run@3").err == "prod names it already\n"
    assert cli.ok("path", "prod") == cli.ok("path", "run@latest") == cli.ok("path", mine.hex)
    assert "alias         prod" in cli.ok("show", "prod").splitlines()
    header, row = cli.ok("alias", "list").splitlines()
    assert header.split() == ["ALIAS", "ADAPTER", "SINCE", "BY"]
    assert row.split()[:2] == ["prod", digest]
    done = cli("alias", "remove", "prod", "--expect", "run@3")
    assert (done.code, done.out, done.err) == (0, "", f"prod: {digest} -> none\n")
    assert [line.split()[:3] for line in cli.ok("alias", "history", "prod").splitlines()[1:]] == [
        ["1", "none", digest],
        ["2", digest, "none"],
    ]
    assert cli("path", "prod").code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "mentioned"),
    [
        (("set", "beef", "run@3"), 2, "start of a digest"),
        (("set", "run@3", "run@3"), 2, "cannot be an alias"),
        (("set", "--", "-x", "run@3"), 2, "cannot be an alias"),
        (("set", "prod", "run@x"), 2, "RUN@ITER"),
        (("set", "prod", "run@4"), 3, "run@4"),
        (("set", "prod", "stage"), 3, "stage"),
        (("set", "prod", "run@3", "--expect", "run@3"), 6, "found none"),
        (("remove", "prod"), 3, "prod"),
        (("history", "prod"), 3, "prod"),
    ],
)
def test_what_cannot_be_done_exits_with_its_code_and_one_line(
    arguments: tuple[str, ...], code: int, mentioned: str, shelf: Shelf
) -> None:
    done = shelf.cli("alias", *arguments)
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1
    assert mentioned in done.err
    assert shelf.cli.ok("alias", "list").count("\n") == 0


def test_several_adapters_of_one_iteration_exit_4_and_are_listed(mine: Shelf, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "again", contents(lora_state(seed=4)), config={"run_id": "run"})
    digest = mine.cli.ok("add", other)
    done = mine.cli("path", "run@3")
    assert (done.code, done.out) == (4, "")
    for each in (digest.removeprefix("sha256:"), mine.hex):
        assert each[:12] in done.err


def test_add_moves_an_alias_to_one_adapter_only(mine: Shelf, tmp_path: Path) -> None:
    checkpoints = [
        write_checkpoint(tmp_path / name, contents(lora_state(seed=seed))) for name, seed in (("x", 7), ("y", 8))
    ]
    digest = mine.cli.ok("add", checkpoints[0], "--alias", "best")
    assert mine.cli.ok("alias", "list").splitlines()[1].split()[:2] == ["best", digest]
    done = mine.cli("add", *checkpoints, "--alias", "best")
    assert (done.code, done.out) == (2, "")
    assert "one checkpoint" in done.err
    assert mine.cli("add", checkpoints[1], "--alias", "abcd").code == 2
    assert len(mine.cli.ok("list").splitlines()) == 3


def test_asking_for_aliases_makes_no_registry(cli: CommandLine) -> None:
    for arguments, code in ((("alias", "list"), 0), (("path", "prod"), 3), (("path", "run@3"), 3)):
        assert cli(*arguments).code == code
    assert not cli.home.exists()
