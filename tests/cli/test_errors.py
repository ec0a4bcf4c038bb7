"""What goes wrong around the command line: always the promised exit code and one line, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Shelf
from tests.support.process import COMMAND, CommandLine, Finished
from tests.support.runs import contents, lora_state, write_checkpoint

EVIL = "a\x1b[31m\x07\u202e\u2066\x9b0mz"
"""Colours, a bell, right-to-left marks: what a terminal would obey."""


def assert_one_line(done: Finished, code: int, *mentioned: str | Path) -> None:
    assert (done.code, done.out) == (code, ""), done
    assert done.err.startswith("aorlta-reg: ")
    assert done.err.count("\n") == 1
    for text in mentioned:
        assert str(text) in done.err


def test_home_that_is_a_file_exits_7_for_every_command_and_is_left_alone(
    cli: CommandLine, shelf: Shelf, tmp_path: Path
) -> None:
    cli.home.write_text("mine")
    for arguments in (
        ("add", shelf.checkpoint),
        ("get", shelf.hex, "--to", tmp_path / "out"),
        ("show", shelf.hex[:4]),
        ("list",),
    ):
        done = cli(*arguments)
        assert (done.code, done.out) in ((7, ""), (3, "")), (arguments, done)
        assert "Traceback" not in done.err
        if arguments[0] in ("add", "list"):
            assert_one_line(done, 7, cli.home)
    assert cli.home.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [cli.home]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("name", ["trainer.pt", "manifest.json"])
def test_checkpoint_file_that_is_no_file_is_refused_without_waiting(
    name: str, make, cli: CommandLine, checkpoint: Path
) -> None:
    (checkpoint / name).unlink()
    make(checkpoint / name)
    done = cli("add", checkpoint)
    assert_one_line(done, 2, checkpoint / name)
    assert not cli.home.exists()


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/mem", "/proc", "/dev/full"])
def test_odd_paths_are_refused_as_checkpoints(path: str, cli: CommandLine) -> None:
    done = cli("add", path)
    assert done.code in (2, 3, 7)
    assert_one_line(done, done.code, path)
    assert not cli.home.exists()


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null/below"])
def test_home_that_cannot_be_made_exits_with_its_path(home: str, shelf: Shelf) -> None:
    done = shelf.cli("add", shelf.checkpoint, "--home", home)
    assert done.code in (3, 7)
    assert_one_line(done, done.code, home)


def test_index_that_is_no_database_exits_7_and_is_left_alone(cli: CommandLine, checkpoint: Path) -> None:
    cli.home.mkdir()
    index = cli.home / "index.sqlite"
    index.write_bytes(b"not a database" * 1000)
    for arguments in (("add", checkpoint), ("list",)):
        assert_one_line(cli(*arguments), 7, index)
    assert index.read_bytes() == b"not a database" * 1000


def test_index_of_a_newer_program_exits_7_and_says_what_to_do(cli: CommandLine, checkpoint: Path) -> None:
    cli.ok("db", "upgrade")
    change = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit(); c.close()"
    newer = "UPDATE alembic_version SET version_num = '9999'"
    subprocess.run([sys.executable, "-c", change, cli.home / "index.sqlite", newer], check=True)
    for arguments in (("add", checkpoint), ("list",)):
        assert_one_line(cli(*arguments), 7, "newer", "9999", "pip install --upgrade")


@pytest.fixture
def read_only(shelf: Shelf, tmp_path: Path) -> Iterator[CommandLine]:
    """The shelf on a read-only file system: as root, permissions would stop nobody."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    shutil.copytree(shelf.cli.home, tmp_path / "writable" / "home")
    bind = [["mount", "--bind", tmp_path / "writable", mounted], ["mount", "-o", "remount,ro,bind", mounted]]
    if any(subprocess.run(step, capture_output=True, check=False).returncode for step in bind):
        pytest.skip("this machine does not let tests mount anything")
    yield CommandLine(mounted / "home")
    subprocess.run(["umount", "--lazy", mounted], check=True)


def test_read_only_registry_hands_out_adapters_and_takes_none(
    read_only: CommandLine, shelf: Shelf, tmp_path: Path
) -> None:
    assert read_only.ok("path", shelf.hex).endswith(shelf.hex)
    assert read_only.ok("get", shelf.hex, "--to", tmp_path / "out")
    new = write_checkpoint(tmp_path / "new", contents(lora_state(seed=3)))
    assert_one_line(read_only("add", new), 7, read_only.home, "read-only")
    for command in (("list",), ("show", shelf.hex)):
        done = read_only(*command)
        assert done.code in (0, 7)
        assert "Traceback" not in done.err


def run_shell(shelf: Shelf, script: str) -> Finished:
    """`$REG` in the script is the command."""
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=shelf.cli.environment(REG=" ".join(COMMAND), HEX=shelf.hex, CKPT=str(shelf.checkpoint)),
        timeout=60,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("command", ["list", "path $HEX", "add $CKPT", "--version", "--help"])
def test_full_stdout_exits_7(command: str, shelf: Shelf) -> None:
    done = run_shell(shelf, f"$REG {command} > /dev/full")
    assert_one_line(done, 7, "standard output", "no space left")


@pytest.mark.parametrize(("command", "code"), [("path $HEX", 0), ("path 0000", 3), ("add /nowhere", 3)])
@pytest.mark.parametrize("closed", ["2>/dev/full", "2>&-", "2>&- >&-"])
def test_exit_code_does_not_hang_on_a_working_stderr(command: str, code: int, closed: str, shelf: Shelf) -> None:
    done = run_shell(shelf, f"$REG {command} {closed}")
    assert (done.code, done.err) == (code, "")
    assert done.out == ("" if code or closed.endswith(" >&-") else f"{shelf.directory}\n")


@pytest.mark.parametrize("command", ["list", "show $HEX"])
def test_reader_that_stops_reading_gets_no_complaint(command: str, shelf: Shelf) -> None:
    done = run_shell(shelf, f"$REG {command} | true; exit ${{PIPESTATUS[0]}}")
    assert done.err == ""
    assert done.code in (0, 141), "0 where it had written before the pipe was closed"
    closed = run_shell(shelf, f"(sleep 1; $REG {command}; echo $? >&2) | true")
    assert closed.err == "141\n"


STRANGER = """
import os, sys
from contextlib import suppress
from registry.cli import main
sys.argv = ["aorlta-reg", "path", "abcd"]
with suppress(SystemExit):
    main()  # loads what a stranger may not read
del os.environ["AORLTA_REG_HOME"]
os.setuid(54321)
main()
"""


def test_no_home_at_all_is_refused_with_what_to_do() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user without a home")
    done = subprocess.run(
        [sys.executable, "-c", STRANGER],
        capture_output=True,
        text=True,
        env={"PATH": os.defpath, "AORLTA_REG_HOME": "/nowhere"},
        check=False,
    )
    last = done.stderr.splitlines(keepends=True)[-1]
    assert_one_line(Finished(done.returncode, done.stdout, last), 2, "--home", "AORLTA_REG_HOME")


def test_an_empty_home_is_no_home(cli: CommandLine) -> None:
    assert_one_line(cli("list", AORLTA_REG_HOME="", XDG_DATA_HOME="", HOME=""), 2, "--home", "AORLTA_REG_HOME")


def test_interrupt_of_a_long_add_exits_130_and_keeps_what_was_done(cli: CommandLine, checkpoint: Path) -> None:
    command = [*COMMAND, "add", *[str(checkpoint)] * 10_000]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cli.environment()
    ) as process:
        assert process.stdout is not None
        digest = process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1].startswith("aorlta-reg: interrupted")
    assert "Traceback" not in stderr
    assert cli.ok("path", digest)
    assert list((cli.home / "staging").iterdir()) == []


def test_nothing_that_a_terminal_would_obey_is_printed(cli: CommandLine, tmp_path: Path) -> None:
    config = {"run_id": EVIL, "model": {"base": EVIL, "revision": EVIL}}
    checkpoint = write_checkpoint(tmp_path / f"{EVIL}\n", config=config)
    added = cli("add", checkpoint)
    assert added.code == 0, added
    digest = added.out.strip()
    out = tmp_path / f"out{EVIL}"
    for arguments, code in (
        (("show", digest), 0),
        (("show", "--json", digest), 0),
        (("list",), 0),
        (("add", checkpoint), 0),
        (("get", digest, "--to", out), 0),
        (("get", digest, "--to", out), 2),
        (("add", tmp_path / EVIL), 3),
        (("path", EVIL), 3),
        (("path", "--json", EVIL), 3),
        ((EVIL,), 2),
    ):
        done = cli(*arguments)
        assert done.code == code, (arguments, done)
        for text in (done.out, done.err, added.err):
            assert all(char.isprintable() for char in text.replace("\n", "")), (arguments, text)
    assert "\\x1b[31m" in cli("list").out
    assert added.err.count("\n") == 1
    shown = json.loads(cli("show", "--json", digest).out)
    assert shown["exports"][0]["run"] == EVIL


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
    ],
)
def test_names_that_are_not_ascii_work_in_every_locale(locale: dict[str, str], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "läuft-日本", config={"run_id": "läuft", "model": {"base": "日本"}})
    cli = CommandLine(tmp_path / "hüte")
    added = cli("add", checkpoint, **locale)
    assert added.code == 0, added.err
    for arguments in (("list",), ("show", added.out.strip()), ("path", added.out.strip())):
        done = cli(*arguments, **locale)
        assert (done.code, done.err) == (0, "")
    assert json.loads(cli("list", "--json", **locale).out)["adapters"][0]["exports"][0]["run"] == "läuft"
    assert cli("add", f"{checkpoint}-", **locale).code == 3


def test_path_that_is_not_utf8_is_added_and_shown_escaped(cli: CommandLine, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / os.fsdecode(b"run\xff"), config={"run_id": "run"})
    added = cli("add", checkpoint)
    assert added.code == 0, added.err
    for arguments in (("show", added.out.strip()), ("show", "--json", added.out.strip())):
        assert "udcff" in cli.ok(*arguments)


@pytest.mark.parametrize("arguments", [(), ("nosuch",), ("add",), ("get", "abcd"), ("list", "--limit", "many")])
def test_usage_errors_exit_2_and_print_nothing_on_stdout(arguments: tuple[str, ...], cli: CommandLine) -> None:
    done = cli(*arguments)
    assert (done.code, done.out if arguments else "") == (2, "")
    assert "Usage" in done.err + done.out
