"""`aorlta-reg add RUN_DIR` and `aorlta-reg watch`: real processes beside slow trainers, killed and started again."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
import typer

from registry import Registry
from registry.cli.watching import watch
from registry.operations import watch as operation
from tests.support.mounts import needs_mounts, run_mounted
from tests.support.process import COMMAND, CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.taking import plain
from tests.support.trainers import prime_rl, transformers
from tests.support.trees import flip
from tests.support.users import ONE, common_ground, give, needs_root

PATIENCE = 90.0  # seconds; for machines that do many other things
QUICK = ("--every", "0.1")


def write_run(run: Path, *steps: int) -> list[Path]:
    return [write_checkpoint(run, contents(lora_state(seed=step), iteration=step), iteration=step) for step in steps]


def test_a_run_is_added_by_step_and_summed_up(cli: CommandLine, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 10, 9)
    (tmp_path / "run" / "ckpt" / "iter-11").mkdir()
    done = cli("add", "run", cwd=tmp_path)
    registry = Registry(cli.home)
    digests = [str(registry.resolve(f"run@{step}")) for step in (9, 10)]
    assert (done.code, done.out.split()) == (0, digests)
    assert done.err.splitlines() == [
        "added: run run iteration 9, r 4, alpha 8 <- run/ckpt/iter-9",
        "added: run run iteration 10, r 4, alpha 8 <- run/ckpt/iter-10",
        "incomplete: no tensors <- run/ckpt/iter-11",
        "run: 2 added, 1 incomplete",
    ]
    again = cli("add", "run/", cwd=tmp_path)
    assert (again.code, again.out.split()) == (0, digests)
    assert again.err.splitlines()[-1] == "run/: 2 known, 1 incomplete"


def test_a_run_beside_a_checkpoint_and_one_that_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1, 2)
    flip(tmp_path / "run" / "ckpt" / "iter-1" / "trainer.pt")
    done = cli("add", tmp_path / "run", plain(tmp_path / "a"), "--json")
    document = json.loads(done.out)
    assert done.code == 2
    assert [Path(each["checkpoint"]).name for each in document["adapters"]] == ["iter-2", "a"]
    assert [(Path(each["checkpoint"]).name, each["kind"]) for each in document["errors"]] == [
        ("iter-1", "ManifestMismatch")
    ]
    again = json.loads(cli("add", tmp_path / "run", "--json").out)
    assert [(each["step"], each["state"]) for each in again["skipped"]] == [(2, "known")]


def test_the_adapter_beside_a_runs_checkpoints_is_what_add_takes(cli: CommandLine, tmp_path: Path) -> None:
    run, final = tmp_path / "run", plain(tmp_path / "a")
    transformers(run, 10, final)
    shutil.copytree(final, run, dirs_exist_ok=True)
    done = cli("add", run, "--alias", "final")
    assert (done.code, len(done.out.split())) == (0, 1)
    assert "is a checkpoint itself: the 1 below it are not added" in done.err
    assert [export.iteration for export in Registry(cli.home).show("final").exports] == [None]


def test_one_bar_tells_how_far_a_run_is(cli: CommandLine, tmp_path: Path) -> None:
    for step in (1, 2):
        saved = {**contents(lora_state(seed=step), iteration=step), "optimizer": torch.zeros(9 << 20)}
        write_checkpoint(tmp_path / "run", saved, iteration=step)
    (tmp_path / "run" / "ckpt" / "iter-3").mkdir()
    shown = on_terminal(cli, "add", tmp_path / "run")
    assert len(re.findall(r"\[#+\] +100%", shown)) == 1
    assert re.search(r"0 of 3, 1[0-9.]+ MiB of 72\.0 MiB", shown)
    assert re.search(r"1 of 3, 5[0-9.]+ MiB of 72\.0 MiB", shown)
    for line in (r"sha256:[0-9a-f]{64}", r"incomplete: no tensors <- "):
        assert re.search(rf"\x1b\[K{line}|\n{line}", shown), "a line of its own"


def on_terminal(cli: CommandLine, *arguments: str | Path) -> str:
    """What a command that succeeds writes to a terminal."""
    ours, its = pty.openpty()
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=its, stderr=its, env=cli.environment()) as process:
        os.close(its)
        shown = b""
        with suppress(OSError):  # so a terminal says that nobody writes any more
            while more := os.read(ours, 1 << 16):
                shown += more
        os.close(ours)
    assert process.returncode == 0
    return shown.decode()


@pytest.mark.parametrize("option", ["--alias", "--served"])
def test_what_belongs_to_one_checkpoint_is_refused_for_a_run(option: str, cli: CommandLine, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    done = cli("add", tmp_path / "run", option, "name")
    assert (done.code, done.out) == (2, "")
    assert f"{option} belongs to one checkpoint; found a run" in done.err
    assert not cli.home.exists()


def test_a_run_of_two_kinds_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    prime_rl(tmp_path / "run", 1, plain(tmp_path / "a"))
    for command in (("add",), ("watch", "--until-idle", "0")):
        done = cli(*command, tmp_path / "run")
        assert done.code == 2, done
        assert "more than one kind" in done.err


def test_prime_rls_broadcasts_are_taken_once_they_are_stable(cli: CommandLine, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    for step in (1, 2):
        prime_rl(tmp_path / "run", step, source)
    (tmp_path / "run" / "broadcasts" / "step_2" / "STABLE").unlink()
    done = cli("add", tmp_path / "run", "--run", "mine")
    assert done.code == 0
    assert done.err.splitlines()[-1].endswith("1 added, 1 incomplete")
    assert "no STABLE" in done.err


class Watching:
    """A running `aorlta-reg watch`, and the lines it prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """The next line on stdout."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert ready, "nothing came"
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said, once it has ended."""
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err


@contextmanager
def watching(cli: CommandLine, *arguments: str | Path) -> Iterator[Watching]:
    process = cli.start("watch", *arguments)
    try:
        yield Watching(process)
    finally:
        process.kill()
        process.communicate()


SLOW_TRAINER = """
import hashlib, json, os, sys, time
source, target = sys.argv[1:]
os.makedirs(target)
data = open(source + "/trainer.pt", "rb").read()
with open(target + "/trainer.pt", "wb", buffering=0) as file:
    for at in range(0, len(data), len(data) // 8):
        file.write(data[at : at + len(data) // 8])
        time.sleep(0.15)
entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
open(target + "/manifest.json", "w").write(json.dumps({"files": {"trainer.pt": entry}}))
"""


def test_a_slow_trainers_checkpoint_is_taken_once_it_is_whole(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, 1)
    (made,) = write_run(tmp_path / "made", 2)
    with watching(cli, run, *QUICK) as watched:
        first = watched.line()
        target = run / "ckpt" / "iter-2"
        subprocess.run([sys.executable, "-c", SLOW_TRAINER, str(made), str(target)], check=True)
        second = watched.line()
        watched.process.send_signal(signal.SIGINT)
        code, err = watched.end()
    assert code == 130
    assert "Traceback" not in err
    assert "refused" not in err
    registry = Registry(cli.home)
    assert [first, second] == [str(registry.resolve(f"run@{step}")) for step in (1, 2)]


def test_watch_that_is_killed_goes_on_when_it_is_started_again(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, 1, 2)
    with watching(cli, run, *QUICK) as watched:
        first = watched.line()
        watched.process.kill()
    write_run(run, 3)
    done = cli("watch", run, *QUICK, "--until-idle", "1")
    assert done.code == 0
    found = done.out.split()
    assert found[0] == first
    registry = Registry(cli.home)
    assert found == [str(registry.resolve(f"run@{step}")) for step in (1, 2, 3)]
    verified = registry.verify()
    assert verified.findings == ()


def test_watch_prints_one_object_a_line_as_they_come(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, 1)
    with watching(cli, run, *QUICK, "--json") as watched:
        document = json.loads(watched.line())
        assert (document["step"], document["state"], document["added"]["outcome"]) == (1, "added", "added")
        (run / "ckpt" / "iter-2").mkdir()
        assert json.loads(watched.line())["state"] == "incomplete"


def test_the_exit_code_is_of_how_the_checkpoints_stand_at_the_end(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was refused while it was half written, and was added later, is no failure. The clock is the test's own."""
    checkpoint = write_checkpoint(tmp_path / "run", manifest=False)
    whole = (checkpoint / "trainer.pt").read_bytes()
    os.truncate(checkpoint / "trainer.pt", 1000)
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] == 6:
            (checkpoint / "trainer.pt").write_bytes(whole)

    monkeypatch.setattr(operation.time, "sleep", sleep)
    monkeypatch.setattr(operation.time, "monotonic", lambda: clock[0])
    for code, until in ((2, 2.0), (0, 10.0)):
        with pytest.raises(typer.Exit) as ended:
            watch(str(tmp_path / "run"), every=1.0, until_idle=until, home_option=str(cli.home), as_json=True)
        assert ended.value.exit_code == code
    states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
    assert states == ["refused", "refused", "added"]


def test_two_watches_of_one_run_take_each_checkpoint_once(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, *range(1, 6))
    both = [cli.start("watch", run, *QUICK, "--until-idle", "2") for _ in range(2)]
    outs = [process.communicate(timeout=PATIENCE) for process in both]
    assert [process.returncode for process in both] == [0, 0], outs
    assert sorted(outs[0][0].split()) == sorted(outs[1][0].split())
    registry = Registry(cli.home)
    assert [len(adapter.exports) for adapter in registry.newest(10)] == [1] * 5
    assert registry.verify().findings == ()


@needs_root
@pytest.mark.parametrize("closed", ["iter-1/trainer.pt", "iter-1"])
def test_an_unreadable_checkpoint_is_named_and_stops_no_other(closed: str) -> None:
    with common_ground() as ground:
        write_run(ground / "run", 1, 2)
        give(ground / "run", ONE)
        (ground / "run" / "ckpt" / closed).chmod(0)
        (ground / "out").mkdir()
        give(ground / "out", ONE)
        cli = CommandLine(ground / "out" / "home")
        added, watched = ONE.run(cli, ("add", ground / "run"), ("watch", ground / "run", *QUICK, "--until-idle", "0.5"))
    assert (added.code, len(added.out.split())) == (7, 1)
    (line,) = (line for line in added.err.splitlines() if "ermission denied" in line)
    assert "iter-1/trainer.pt: " in line
    assert (watched.code, watched.out) == (7, added.out)
    assert watched.err.count("ermission denied") == 1


@needs_root
def test_a_run_that_cannot_be_listed_is_told() -> None:
    with common_ground() as ground:
        write_run(ground / "run", 1)
        give(ground, ONE)
        (ground / "run").chmod(0)
        (watched,) = ONE.run(
            CommandLine(ground / "home"), ("watch", ground / "run", *QUICK, "--until-idle", "0.3"), timeout="60"
        )
    assert (watched.code, watched.out) == (7, "")
    assert "permission denied" in watched.err


@needs_mounts
def test_a_full_disk_is_told_once_and_what_could_not_be_added_comes_when_there_is_room(
    cli: CommandLine, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    wide = {f"model.layers.{at}.self_attn.q_proj.lora_A.weight": torch.ones(4, 100_000) for at in range(2)}
    narrow = {key.replace("lora_A", "lora_B"): torch.ones(8, 4) for key in wide}
    write_checkpoint(run, contents({**wide, **narrow}, iteration=1), iteration=1)
    write_run(run, 2)
    done = run_mounted(
        cli,
        f"mkdir {cli.home}; mount -t tmpfs -o size=6m none {cli.home}",
        f"$REG db upgrade; head -c 4m /dev/zero > {cli.home}/filler",
        f"$REG watch {run} --every 0.1 --until-idle 1 2> {tmp_path}/said & watch=$!",
        f"until grep -q 'no space' {tmp_path}/said; do sleep 0.1; done; sleep 1; rm {cli.home}/filler; wait $watch",
        f"code=$?; cat {tmp_path}/said >&2; exit $code",
    )
    assert done.code == 0, done
    assert done.err.count("no space left on device") == 1
    assert [line.split(":")[0] for line in done.out.splitlines()] == ["index at 0004 (was empty)", "sha256", "sha256"]


def test_watch_of_a_run_that_goes_and_comes(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with watching(cli, run, *QUICK) as watched:
        deadline = time.monotonic() + PATIENCE
        write_run(tmp_path / "made", 1)
        os.rename(tmp_path / "made", run)
        first = watched.line()
        shutil.rmtree(run)
        write_run(tmp_path / "made", 2)
        os.rename(tmp_path / "made", run)
        second = watched.line()
        assert first != second
        assert time.monotonic() < deadline


def test_a_run_with_hostile_names_prints_nothing_a_terminal_obeys(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "run\x1b[31m\u202e\n"
    write_run(run, 1)
    (run / "ckpt" / "iter-2").mkdir()
    for command in (("add", run), ("watch", run, *QUICK, "--until-idle", "0")):
        done = cli(*command)
        assert done.code == 0
        text = done.out + done.err
        assert "\x1b" not in text
        assert "\u202e" not in text
