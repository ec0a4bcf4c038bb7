"""`aorlta-reg verify` and `gc`: exit codes, output, documents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Shelf
from tests.support.process import CommandLine
from tests.support.trees import flip


@pytest.fixture
def mine(shelf: Shelf, tmp_path: Path) -> Shelf:
    """A copy of the shelf, to be changed."""
    shutil.copytree(shelf.cli.home, tmp_path / "mine")
    return Shelf(CommandLine(tmp_path / "mine"), shelf.checkpoint, shelf.hex)


def test_sound_registry_is_said_to_be_well_on_stdout(shelf: Shelf) -> None:
    for arguments in (("--all",), (shelf.hex[:6], "run@3"), ("--sample", "5%", "--seed", "1"), ("--all", "--sample=1")):
        done = shelf.cli("verify", *arguments)
        assert done.code == 0, done
        assert done.out.startswith("1 adapters, ")
        assert done.out.endswith(": all is well\n")
    assert "--seed 1" in shelf.cli("verify", "--sample", "5%", "--seed", "1").err


def test_what_does_not_belong_there_is_said_on_stderr_and_all_is_well(mine: Shelf) -> None:
    (mine.cli.home / "adapters" / "bidi\u202e\x1b[31m").write_bytes(b"")
    done = mine.cli("verify", "--all")
    assert (done.code, done.out.endswith(": all is well\n"), done.err.count("\n")) == (0, True, 1)
    assert "nothing of the registry" in done.err
    assert ("\u202e" in done.err, "\x1b" in done.err) == (False, False)


def test_damage_exits_5_and_every_file_is_named_on_stderr(mine: Shelf) -> None:
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        flip(mine.directory / name)
    done = mine.cli("verify", "--all")
    assert done.code == 5
    assert done.out.rstrip().endswith(f"{len(done.err.splitlines())} findings")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert any(name in line and mine.hex in line and "--repair" in line for line in done.err.splitlines())
    document = mine.cli("verify", mine.hex, "--json")
    found = json.loads(document.out)
    assert document.code == 5
    assert list(found) == ["checked", "bytes", "findings", "repaired", "not_repaired", "quarantined", "seed", "seconds"]
    assert {each["digest"] for each in found["findings"]} == {f"sha256:{mine.hex}"}
    first = next(each for each in found["findings"] if each["check"] == "bytes")
    assert first["kind"] == "IntegrityError"
    assert first["expected"] != first["found"]


@pytest.mark.parametrize(
    ("arguments", "code", "mentioned"),
    [
        ((), 2, "--all"),
        (("run@3", "--all"), 2, "--all"),
        (("run@3", "--sample", "5%"), 2, "--sample"),
        (("--sample", "0%"), 2, "percentage"),
        (("--sample", "101"), 2, "percentage"),
        (("--sample", "nan"), 2, "percentage"),
        (("--all", "--seed", "1"), 2, "--seed"),
        (("run@4",), 3, "run@4"),
        (("run@3", "ffff"), 3, "ffff"),
    ],
)
def test_what_cannot_be_meant_exits_with_its_code_and_one_line(
    arguments: tuple[str, ...], code: int, mentioned: str, shelf: Shelf
) -> None:
    done = shelf.cli("verify", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    assert mentioned in done.err


def test_repair_exits_0_once_all_is_well_and_5_where_the_checkpoint_is_gone(mine: Shelf, tmp_path: Path) -> None:
    flip(mine.directory / "adapter_model.safetensors")
    done = mine.cli("verify", "--all", "--repair", "--json")
    found = json.loads(done.out)
    assert (done.code, found["findings"], found["not_repaired"], found["quarantined"]) == (0, [], [], 1)
    assert [each["digest"] for each in found["repaired"]] == [f"sha256:{mine.hex}"]
    home = tmp_path / "other"
    checkpoint = shutil.copytree(mine.checkpoint, tmp_path / "run" / "ckpt" / "iter-3")
    cli = CommandLine(home)
    digest = cli.ok("add", checkpoint, "--alpha", "8")
    shutil.rmtree(tmp_path / "run")
    flip(home / "adapters" / digest[7:9] / digest[7:] / "adapter_config.json")
    done = cli("verify", digest, "--repair")
    assert (done.code, "no such file" in done.err) == (5, True)
    assert "2 findings" in done.out, "the text is no JSON any more, and its sha256 is another"


def test_gc_lists_what_goes_on_stdout_and_says_so_before(mine: Shelf) -> None:
    assert mine.cli("gc").code == 2
    assert mine.cli("gc", "--older-than", "soon").code == 2
    done = mine.cli("gc", "--keep-last", "1")
    assert (done.code, done.out, done.err) == (0, "", "removed 0 adapters, 0 B\n")
    told = mine.cli("gc", "--keep-last", "0", "--dry-run", "--json")
    went = mine.cli("gc", "--keep-last", "0", "--json")
    assert json.loads(went.out) == json.loads(told.out) | {"dry_run": False}
    (adapter,) = json.loads(went.out)["adapters"]
    assert (adapter["digest"], adapter["run"], adapter["iteration"]) == (f"sha256:{mine.hex}", "run", 3)
    assert "gc: --keep-last 0" in mine.cli("path", mine.hex).err
