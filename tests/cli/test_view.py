"""`aorlta-reg view` and what `show` and `get` say of engines: the output that people and scripts see."""

from __future__ import annotations

import json
import os
from pathlib import Path

from registry.core.layout import CONFIG, WEIGHTS
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.taking import plain
from tests.support.trees import flip


def fill(cli: CommandLine, tmp_path: Path) -> list[str]:
    """Two adapters of a run, the second rsLoRA; their hex digests."""
    made = [
        write_checkpoint(
            tmp_path / "run", contents(lora_state(seed=number), iteration=number, **more), iteration=number
        )
        for number, more in ((1, {}), (2, {"rslora": True}))
    ]
    return cli.ok("add", *made).replace("sha256:", "").split()


def test_view_prints_the_names_to_ask_for_and_tells_the_rest(cli: CommandLine, tmp_path: Path) -> None:
    one, two = fill(cli, tmp_path)
    done = cli("view", "seen", "--run", "run", "--for", "sglang", cwd=tmp_path)
    assert (done.code, done.out) == (0, f"{one}\n")
    left_out, told, base = done.err.splitlines()
    assert left_out.startswith(f"  left out: sha256:{two}: not for sglang: use_rslora: ")
    assert told == f"{tmp_path}/seen: 1 added, 1 left out"
    assert base == "  1 of the base org/base"
    again = cli("view", "seen", "--for", "vllm", cwd=tmp_path)
    assert again.err.splitlines()[0] == f"{tmp_path}/seen: 1 added, 1 kept"


def test_view_of_one_that_is_named_and_does_not_fit_fails(cli: CommandLine, tmp_path: Path) -> None:
    one, two = fill(cli, tmp_path)
    done = cli("view", tmp_path / "seen", one, two, "--for", "sglang")
    assert (done.code, done.out) == (2, f"{one}\n")


def test_view_of_a_run_with_a_damaged_adapter_fails_and_shows_the_others(cli: CommandLine, tmp_path: Path) -> None:
    one, two = fill(cli, tmp_path)
    flip(Path(cli.ok("path", one)) / WEIGHTS)
    done = cli("view", tmp_path / "seen", "--run", "run", "--for", "vllm")
    assert (done.code, done.out) == (5, f"{two}\n")
    assert "do not match their digest" in done.err


def test_base_that_nobody_named_is_told(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("add", plain(tmp_path / "a", base_model_name_or_path=None))
    done = cli("view", tmp_path / "seen", "--for", "vllm")
    assert done.err.splitlines()[-1] == "  1 of no known base: give its name with --base-name"
    named = cli("view", tmp_path / "seen", "--for", "vllm", "--base-name", "org/base")
    assert named.err.splitlines() == [f"{tmp_path}/seen: 1 repaired", "  1 of the base org/base"]


def test_view_resolves_as_vllms_resolver_looks(cli: CommandLine, tmp_path: Path) -> None:
    """A name in the directory, no way out of it, a config beside the tensors that names the base that is served."""
    one, _ = fill(cli, tmp_path)
    root = tmp_path / "seen"
    for name in cli.ok("view", root, "--for", "vllm").split():
        assert os.path.realpath(root / name) == str(root / name)
        config = json.loads((root / name / CONFIG).read_text())
        assert (config["peft_type"], config["base_model_name_or_path"]) == ("LORA", "org/base")
    assert (root / one).is_dir()


def test_show_tells_only_what_speaks_against_an_engine(cli: CommandLine, tmp_path: Path) -> None:
    one, two = fill(cli, tmp_path)
    assert "engine" not in cli.ok("show", one)
    (line,) = [line for line in cli.ok("show", two).splitlines() if line.startswith("engine")]
    assert line.startswith("engine        not for sglang: use_rslora: ")
    large = write_checkpoint(tmp_path / "large", contents(lora_state(r=32), r=32), config={"lora": {}})
    digest = cli.ok("add", large)
    assert cli.ok("show", digest).splitlines()[-1] == (
        "engine        vllm must be started with --max-lora-rank 32 or more"
    )


def test_show_answers_where_files_are_damaged(cli: CommandLine, tmp_path: Path) -> None:
    one, _ = fill(cli, tmp_path)
    file = Path(cli.ok("path", one)) / CONFIG
    flip(file)
    done = cli("show", one)
    assert done.code == 0
    assert f"adapter       sha256:{one}" in done.out
    assert done.err.startswith("what engines make of it is not known: ")
    assert json.loads(cli.ok("show", one, "--json"))["engines"] == {}


def test_get_for_an_engine_says_why_not(cli: CommandLine, tmp_path: Path) -> None:
    _, two = fill(cli, tmp_path)
    done = cli("get", two, "--to", tmp_path / "out", "--for", "sglang")
    assert (done.code, done.out) == (2, "")
    assert f"sha256:{two}: not for sglang: use_rslora" in done.err
    assert cli.ok("get", two, "--to", tmp_path / "out", "--for", "vllm", "--max-rank", "4") == str(tmp_path / "out")
    assert cli("get", two, "--to", tmp_path / "b", "--for", "nothing").code == 2
    assert not (tmp_path / "b").exists()
