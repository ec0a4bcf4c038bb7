"""`aorlta-reg add`: digests on stdout, everything else on stderr, and no bad checkpoint stops the others."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from registry import Registry
from tests.support.process import COMMAND, CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import flip


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "second", contents(lora_state(seed=1)))


@pytest.fixture
def truncated(tmp_path: Path) -> Path:
    """Refused: the file is shorter than its manifest says."""
    checkpoint = write_checkpoint(tmp_path / "truncated")
    os.truncate(checkpoint / "trainer.pt", 3000)
    return checkpoint


def test_digest_alone_goes_to_stdout_and_the_story_to_stderr(cli: CommandLine, checkpoint: Path) -> None:
    done = cli("add", checkpoint)
    digest = Registry(cli.home).newest(1)[0].digest
    assert (done.code, done.out) == (0, f"{digest}\n")
    (line,) = done.err.splitlines()
    assert line == f"added: run run iteration 3, r 4, alpha 8 <- {checkpoint}"


def test_adding_again_prints_the_same_digest_and_says_that_it_was_there(cli: CommandLine, checkpoint: Path) -> None:
    first = cli.ok("add", checkpoint)
    again = cli("add", checkpoint / "trainer.pt")
    assert (again.code, again.out.strip()) == (0, first)
    assert again.err.startswith("already present: ")


def test_equal_adapter_from_another_checkpoint_is_told_apart_from_a_repeat(
    cli: CommandLine, checkpoint: Path, tmp_path: Path
) -> None:
    twin = write_checkpoint(tmp_path / "twin", contents(lora_state(), iteration=7), iteration=7)
    first = cli.ok("add", checkpoint)
    done = cli("add", twin)
    assert (done.code, done.out.strip()) == (0, first)
    assert "the new export is recorded" in done.err


def test_bad_checkpoint_does_not_stop_the_others_and_the_worst_code_is_the_exit_code(
    cli: CommandLine, checkpoint: Path, second: Path, truncated: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    done = cli("add", missing, checkpoint, truncated, second)
    assert done.code == 3, "not found outranks refused"
    assert done.out.split() == [cli.ok("add", each) for each in (checkpoint, second)]
    lines = done.err.splitlines()
    assert [str(path) in line for path, line in zip((missing, checkpoint, truncated, second), lines, strict=True)] == (
        [True] * 4
    )
    assert [line.startswith("aorlta-reg: ") for line in lines] == [True, False, True, False]
    assert len(Registry(cli.home).newest(9)) == 2


def test_refused_checkpoint_exits_2_makes_no_registry_and_is_left_alone(cli: CommandLine, truncated: Path) -> None:
    before = (truncated / "trainer.pt").read_bytes()
    done = cli("add", truncated)
    assert (done.code, done.out) == (2, "")
    assert str(truncated / "trainer.pt") in done.err
    assert not cli.home.exists()
    assert (truncated / "trainer.pt").read_bytes() == before


def test_json_lists_what_was_added_and_what_was_not(cli: CommandLine, checkpoint: Path, truncated: Path) -> None:
    done = cli("add", "--json", truncated, checkpoint)
    document = json.loads(done.out)
    assert done.code == 2
    assert [each["checkpoint"] for each in document["adapters"]] == [str(checkpoint)]
    assert [each["checkpoint"] for each in document["errors"]] == [str(truncated)]
    assert [json.loads(line)["error"]["kind"] for line in done.err.splitlines()] == [document["errors"][0]["kind"]]


def test_manifest_mismatch_shows_both_hashes(cli: CommandLine, checkpoint: Path) -> None:
    shutil.copy(write_checkpoint(cli.home.parent / "o", contents(lora_state(seed=2))) / "trainer.pt", checkpoint)
    listed = json.loads((checkpoint / "manifest.json").read_text())["files"]["trainer.pt"]["sha256"]
    done = cli("add", "--json", checkpoint)
    (error,) = json.loads(done.out)["errors"]
    assert (done.code, error["kind"], error["expected"]) == (2, "ManifestMismatch", f"sha256:{listed}")
    assert error["found"] != error["expected"]
    assert error["path"] == str(checkpoint / "trainer.pt")


def test_alpha_is_asked_for_where_nobody_states_it(cli: CommandLine, tmp_path: Path) -> None:
    silent = write_checkpoint(tmp_path / "silent", contents(lora_state(), alpha=None), config={"run_id": "silent"})
    done = cli("add", silent)
    assert (done.code, done.out) == (2, "")
    assert "--alpha" in done.err
    assert not cli.home.exists()
    cli.ok("add", silent, "--alpha", "16")
    assert Registry(cli.home).newest(1)[0].lora_alpha == 16
    contradicted = cli("add", write_checkpoint(tmp_path / "stated"), "--alpha", "16")
    assert contradicted.code == 2
    assert "--alpha" in contradicted.err


def test_run_and_base_can_be_named_where_the_config_does_not(cli: CommandLine, tmp_path: Path) -> None:
    nameless = write_checkpoint(tmp_path / "x", config={})
    done = cli("add", nameless, "--run", "named", "--base", "org/named")
    assert done.code == 0, done.err
    (export,) = Registry(cli.home).newest(1)[0].exports
    assert (export.run, export.base) == ("named", "org/named")
    done = cli("add", nameless)
    assert done.code == 0
    assert "warning: the run is not known" in done.err


def test_repair_is_reported_with_what_was_wrong(cli: CommandLine, checkpoint: Path) -> None:
    digest = cli.ok("add", checkpoint)
    flip(Path(cli.ok("path", digest)) / "adapter_config.json")
    done = cli("add", checkpoint)
    assert (done.code, done.out.strip()) == (0, digest)
    assert done.err.startswith("repaired: ")
    assert "adapter_config.json" in done.err
    assert "already present" not in done.err
    cli.ok("path", digest)


def on_a_terminal(cli: CommandLine, *arguments: str | Path) -> tuple[str, str]:
    """Run a command whose stderr is a terminal; its stdout, and what the terminal got."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=theirs, text=True, env=cli.environment()
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # Linux's way to say that the other side is closed
            pass
        os.close(ours)
        stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    return stdout, shown.decode()


def test_progress_of_long_work_is_shown_on_a_terminal_and_nowhere_else(
    cli: CommandLine, checkpoint: Path, tmp_path: Path
) -> None:
    long = write_checkpoint(tmp_path / "long", {**contents(lora_state()), "optimizer": torch.zeros(17 << 20)})
    stdout, shown = on_a_terminal(cli, "add", long)
    assert "100%" in shown
    assert stdout.count("\n") == 1
    assert "%" not in stdout
    piped = cli("add", long)
    assert "%" not in piped.err + piped.out
    assert "%" not in on_a_terminal(cli, "add", "--json", long)[1]
    assert "%" not in on_a_terminal(cli, "add", checkpoint)[1]
