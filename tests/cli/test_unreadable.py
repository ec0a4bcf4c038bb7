"""Files that a user may not read, and full or odd surroundings: one line that names the file, never a traceback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import Registry
from tests.cli.conftest import Shelf, shelf_for_all
from tests.support.mounts import needs_mounts, run_mounted
from tests.support.process import COMMAND, CommandLine, Finished
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import snapshot
from tests.support.users import ONE, common_ground, give


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    with shelf_for_all() as made:
        yield made


@pytest.fixture
def mine(shelf: Shelf) -> Iterator[Shelf]:
    """A copy of all of it, which belongs to a user."""
    with common_ground() as ground:
        shutil.copytree(shelf.cli.home.parent, ground / "all")
        give(ground / "all", ONE)
        checkpoint = ground / "all" / shelf.checkpoint.relative_to(shelf.cli.home.parent)
        yield Shelf(CommandLine(ground / "all" / "home"), checkpoint, shelf.hex)


def assert_plain(done: Finished, path: Path) -> None:
    assert (done.code, done.out) == (7, ""), done
    assert re.fullmatch(
        rf"aorlta-reg: [^\n]*{re.escape(str(path))}[^\n]*permission denied[^\n]*\n", done.err, re.IGNORECASE
    ), done


@pytest.mark.parametrize("what", ["trainer.pt", "manifest.json", ".", "../../config.json"])
def test_unreadable_part_of_a_checkpoint_is_named(what: str, mine: Shelf) -> None:
    path = mine.checkpoint / what
    path.chmod(0)
    before = snapshot(mine.cli.home)
    (done,) = ONE.run(mine.cli, ("add", mine.checkpoint))
    path.chmod(0o700)
    assert_plain(done, Path(os.path.normpath(path)))
    assert snapshot(mine.cli.home) == before


@pytest.mark.parametrize(
    ("what", "commands"),
    [
        ("adapters/*/*/adapter_model.safetensors", ("path", "get", "add")),
        ("adapters/*/*/export-manifest.json", ("path", "get", "show", "add")),
        ("adapters/*/*", ("path", "get", "add")),
        ("adapters", ("path", "get", "prefix", "add", "reindex")),
        ("records/*/*/export-*.json", ("path", "get", "show", "add", "reindex")),
        ("records/*/*/alias-*.json", ("reindex",)),
        ("pending", ("list", "show", "add")),
        ("index.sqlite", ("list", "show", "alias", "add")),
    ],
)
def test_unreadable_part_of_a_registry_is_named(what: str, commands: tuple[str, ...], mine: Shelf) -> None:
    spelled: dict[str, tuple[str | Path, ...]] = {
        "path": ("path", mine.hex),
        "get": ("get", mine.hex, "--to", mine.cli.home.parent / "out"),
        "prefix": ("path", mine.hex[:8]),
        "show": ("show", mine.hex),
        "list": ("list",),
        "alias": ("path", "prod"),
        "add": ("add", mine.checkpoint),
        "reindex": ("reindex",),
    }
    (path,) = mine.cli.home.glob(what)
    mode = path.stat().st_mode
    path.chmod(0)
    done = ONE.run(mine.cli, *(spelled[command] for command in commands))
    path.chmod(mode)
    for each in done:
        assert each.code == 7, each
        assert path.name in each.err, each
        assert "Traceback" not in each.err
        assert each.err.count("\n") == 1
    assert not (mine.cli.home.parent / "out").exists()
    assert Registry(mine.cli.home).path(mine.hex)
    assert Registry(mine.cli.home).resolve("prod").hex == mine.hex, "the index lost nothing"


def test_registry_in_a_directory_that_may_not_be_entered_is_not_taken_for_none(mine: Shelf) -> None:
    closed = mine.cli.home.parent
    closed.chmod(0)
    questions = (("list",), ("alias", "list"), ("path", "prod"), ("path", mine.hex), ("get", "run@3", "--to", "/tmp/x"))
    done = ONE.run(mine.cli, *questions)
    closed.chmod(0o755)
    for each in done:
        assert_plain(each, mine.cli.home)


def test_output_directory_that_may_not_be_written_is_named(mine: Shelf) -> None:
    closed = mine.cli.home.parent / "closed"
    closed.mkdir()
    give(closed, ONE, mode=0o555)
    got, exported = ONE.run(
        mine.cli, ("get", mine.hex, "--to", closed / "out"), ("export", mine.checkpoint, "--out", closed / "out")
    )
    for done in (got, exported):
        assert_plain(done, closed / "out")


def test_source_with_links_is_followed_and_a_dangling_one_is_refused_by_name(tmp_path: Path) -> None:
    cli, checkpoint = CommandLine(tmp_path / "home"), write_checkpoint(tmp_path / "run")
    real = tmp_path / "real.pt"
    (checkpoint / "trainer.pt").rename(real)
    (checkpoint / "trainer.pt").symlink_to(real)
    (tmp_path / "link").symlink_to(checkpoint)
    assert cli.ok("add", checkpoint) == cli.ok("add", tmp_path / "link")
    real.unlink()
    before = snapshot(cli.home)
    for path in (checkpoint, checkpoint / "trainer.pt"):
        done = cli("add", path)
        assert (done.code, done.out) in ((2, ""), (3, "")), done
        assert str(checkpoint / "trainer.pt") in done.err
        assert done.err.count("\n") == 1
    assert snapshot(cli.home) == before


@needs_mounts
def test_full_disk_publishes_nothing_exits_7_and_after_freeing_it_works(tmp_path: Path) -> None:
    home = tmp_path / "disk"
    home.mkdir()
    cli = CommandLine(home / "home")
    small = write_checkpoint(tmp_path / "small")
    large = write_checkpoint(
        tmp_path / "large", contents(lora_state(r=4096, seed=1), r=4096, alpha=8192), config={"run_id": "large"}
    )
    script = (
        f"$REG add {small} && head -c 600K /dev/zero > {home}/filler",
        f"$REG add {large} && echo unexpected",
        'echo "exit $?"',
        f"ls {home}/home/staging; ls {home}/home/adapters | wc -l",
        f"rm {home}/filler; mount -o remount,size=16m {home}; $REG add {large} && $REG list",
    )
    done = run_mounted(cli, f"mount -t tmpfs -o size=1536k none '{home}'", *script)
    first, code, count, second, *listed = done.out.splitlines()
    assert first.startswith("sha256:")
    assert (code, count) == ("exit 7", "1"), done
    assert "no space left" in done.err
    assert "Traceback" not in done.err
    assert second.startswith("sha256:")
    assert len(listed) == 3


ODD = {
    "TMPDIR that is missing": ({"TMPDIR": "/nowhere"}, ""),
    "TMPDIR that is a file": ({"TMPDIR": "/dev/null"}, ""),
    "TMPDIR on another file system": ({"TMPDIR": "/dev/shm"}, ""),
    "HOME that is a file": ({"HOME": "/dev/null"}, ""),
    "HOME that is missing": ({"HOME": "/nowhere"}, ""),
    "stdin closed": ({}, "<&-"),
    "all closed but stdout": ({}, "<&- 2>&-"),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_surroundings_change_no_answer(odd: str, tmp_path: Path, shelf: Shelf) -> None:
    extra, redirected = ODD[odd]
    cli = CommandLine(tmp_path / "home")
    script = (
        f'for c in "add $CKPT" "path $HEX" "list" "get $HEX --to $OUT" "reindex"; do $REG $c {redirected} || exit; done'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=cli.environment(
            REG=" ".join(COMMAND), HEX=shelf.hex, CKPT=str(shelf.checkpoint), OUT=str(tmp_path / "out"), **extra
        ),
        check=False,
    )
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith(f"sha256:{shelf.hex}\n")
    assert len(list((tmp_path / "out").iterdir())) == 3


@pytest.mark.parametrize("home", ["/dev/null", "/proc"])
def test_data_directory_that_cannot_be_made_is_named(home: str, shelf: Shelf) -> None:
    done = shelf.cli("add", shelf.checkpoint, AORLTA_REG_HOME="", XDG_DATA_HOME="", HOME=home)
    assert done.code in (3, 7)
    assert done.err.startswith(f"aorlta-reg: {home}")
    assert done.err.count("\n") == 1


GONE = """
import os, sys
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
os.execv(sys.executable, [sys.executable, "-m", "registry.cli", *sys.argv[2:]])
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("path", "prod"), 0), (("list", "--home", "relative"), 3), (("get", "prod", "--to", "relative"), 3)],
)
def test_working_directory_that_is_gone_matters_only_to_relative_paths(
    arguments: tuple[str, ...], code: int, shelf: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", GONE, tmp_path / "gone", *arguments],
        capture_output=True,
        text=True,
        env=shelf.cli.environment(PYTHONPATH=os.pathsep.join([os.getcwd(), *sys.path])),
        check=False,
    )
    assert done.returncode in ((code,) if code == 0 else (2, 3, 7)), done
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == (0 if code == 0 else 1)
