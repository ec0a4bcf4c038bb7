"""`aorlta-reg show` and `list`, and what they do where there is nothing to show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from registry import Registry
from tests.cli.conftest import Shelf
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, list[str]]:
    """A registry with three adapters of one run, by iteration; the last two have equal tensors."""
    root = tmp_path_factory.mktemp("three")
    registry, digests = Registry(root / "home"), []
    for iteration, (seed, alpha) in enumerate(((0, 8), (1, 8), (1, 4)), start=1):
        saved = contents(lora_state(seed=seed), iteration=iteration, alpha=alpha)
        config = {"run_id": "run", "model": {"base": "org/base", "revision": "abc123"}}
        checkpoint = write_checkpoint(root / "run", saved, iteration=iteration, config=config)
        digests.append(str(registry.add(checkpoint).digest))
    return CommandLine(root / "home"), digests


def test_list_shows_the_newest_first_one_row_each(three: tuple[CommandLine, list[str]]) -> None:
    cli, digests = three
    done = cli("list")
    header, *rows = done.out.splitlines()
    assert done.err == ""
    assert header.split() == [
        *("DIGEST", "RUN", "ITER", "R", "ALPHA", "MODULES", "SIZE", "BASE", "EXPORTED", "EXPORTS", "VERDICT")
    ]
    assert [[*row.split()[:5], row.split()[-1]] for row in rows] == [
        [digest[7:19], "run", str(iteration), "4", str(alpha), "-"]
        for digest, iteration, alpha in zip(reversed(digests), (3, 2, 1), (4, 8, 8), strict=True)
    ]


def test_limit_bounds_the_list_and_says_so(three: tuple[CommandLine, list[str]]) -> None:
    cli, digests = three
    done = cli("list", "--limit", "2")
    assert [row.split()[0] for row in done.out.splitlines()[1:]] == [digest[7:19] for digest in digests[:0:-1]]
    assert "--limit" in done.err
    assert [each["digest"] for each in json.loads(cli.ok("list", "--json", "--limit", "1"))["adapters"]] == digests[2:]
    assert cli("list", "--limit", "0").code == 2


def test_show_tells_identity_settings_and_origin(three: tuple[CommandLine, list[str]]) -> None:
    cli, digests = three
    text = cli.ok("show", digests[1])
    rows = dict(line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("  same as"))
    assert rows["adapter"] == digests[1]
    assert rows["lora"] == "r 4, alpha 8, scale alpha/r"
    assert rows["run"] == "run, iteration 2"
    assert rows["base"] == "org/base @ abc123"
    assert rows["from"].endswith("run/ckpt/iter-2/trainer.pt")
    assert f"same as     {digests[2]}" in text


def test_show_fills_a_gap_in_the_index_from_the_store(three: tuple[CommandLine, list[str]], tmp_path: Path) -> None:
    shutil.copytree(three[0].home, tmp_path / "copy", ignore=shutil.ignore_patterns("index.sqlite*"))
    cli = CommandLine(tmp_path / "copy")
    shown = [json.loads(each("show", "--json", three[1][0]).out) for each in (three[0], cli)]
    assert [export["run"] for export in shown[1]["exports"]] == ["run"]
    assert shown[0]["exports"] == shown[1]["exports"]


def test_list_of_a_registry_that_does_not_exist_is_empty_and_makes_none(cli: CommandLine) -> None:
    done = cli("list")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 1
    assert json.loads(cli.ok("list", "--json")) == {"adapters": []}
    assert not cli.home.exists()


def test_show_of_what_is_not_there_exits_3_and_makes_no_registry(cli: CommandLine) -> None:
    done = cli("show", "abcd")
    assert (done.code, done.out) == (3, "")
    assert not cli.home.exists()


def test_show_of_a_run_whose_name_is_no_text_exits_2(shelf: Shelf) -> None:
    done = shelf.cli("show", "\udcff@3")
    assert (done.code, done.out) == (2, "")
    assert "not RUN@ITER" in done.err


def test_show_of_an_adapter_whose_manifest_is_gone_from_store_and_index_exits_5(shelf: Shelf, tmp_path: Path) -> None:
    shutil.copytree(shelf.cli.home, tmp_path / "copy", ignore=shutil.ignore_patterns("index.sqlite*", "*manifest.json"))
    done = CommandLine(tmp_path / "copy")("show", shelf.hex)
    assert (done.code, done.out) == (5, "")
    assert "export-manifest.json" in done.err
