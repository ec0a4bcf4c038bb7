"""PEFT adapters on the command line: the same commands, the promised exit codes, nothing a terminal would obey."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file

from registry.core.layout import ADAPTER_FILES, CONFIG, WEIGHTS
from tests.support.merging import edit_config
from tests.support.process import CommandLine
from tests.support.taking import Q, plain, rekeyed
from tests.support.trees import contents, snapshot

EVIL = "a\x1b[31m\x07\u202e\u2066z"


def test_an_adapter_is_added_and_fetched_like_a_checkpoints(cli: CommandLine, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    done = cli("add", source, "--run", "mine", "--alias", "prod")
    assert (done.code, done.err.splitlines()) == (
        0,
        [f"added: run mine iteration -, r 4, alpha 8 <- {source}", "  alias: prod"],
    )
    digest = done.out.strip()
    cli.ok("get", "prod", "--to", tmp_path / "got")
    for name in (WEIGHTS, CONFIG):
        assert (tmp_path / "got" / name).read_bytes() == (source / name).read_bytes()
    shown = json.loads(cli.ok("show", digest, "--json"))
    (export,) = shown["exports"]
    assert (export["reader"], export["checkpoint_digest"], export["base"]) == ("peft", digest, "org/base")


def test_export_keeps_the_bytes_and_needs_no_registry(cli: CommandLine, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    before = snapshot(source)
    digest = cli.ok("export", source, "--out", tmp_path / "out")
    out = contents(tmp_path / "out")
    assert sorted(out) == sorted(ADAPTER_FILES)
    assert {name: out[name] for name in (WEIGHTS, CONFIG)} == contents(source)
    assert json.loads(out["export-manifest.json"])["derived"] is None
    assert not cli.home.exists()
    assert snapshot(source) == before
    assert cli.ok("add", tmp_path / "out") == digest
    assert cli("export", source, "--out", source).code == 2
    assert snapshot(source) == before


def test_what_had_to_be_changed_is_said(cli: CommandLine, tmp_path: Path) -> None:
    source = rekeyed(tmp_path / "a", lambda key: f"_orig_mod.{key}")
    done = cli("export", source, "--out", tmp_path / "out", "--json")
    document = json.loads(done.out)
    assert document["warnings"][0] == "removed '_orig_mod.' from 4 keys"
    assert not any("_orig_mod" in key for key in load_file(tmp_path / "out" / WEIGHTS))


def test_another_function_for_the_same_weights_exits_6_and_shows_both(cli: CommandLine, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    digest = cli.ok("add", source)
    edit_config(source, use_rslora=True)
    done = cli("add", source, "--json")
    (error,) = json.loads(done.out)["errors"]
    assert (done.code, error["kind"], error["key"]) == (6, "ConfigConflict", digest)
    assert (error["found"], error["expected"]) == ("use_rslora True", "use_rslora None")


def test_alpha_is_asked_for(cli: CommandLine, tmp_path: Path) -> None:
    source = plain(tmp_path / "a", lora_alpha=None)
    done = cli("add", source)
    assert (done.code, done.out) == (2, "")
    assert "--alpha" in done.err
    assert not cli.home.exists()
    assert cli.ok("add", source, "--alpha", "8") != cli.ok("add", source, "--alpha", "4")


def test_hostile_words_of_a_config_are_shown_escaped(cli: CommandLine, tmp_path: Path) -> None:
    words = {"base_model_name_or_path": f"/{EVIL}", "peft_version": EVIL, "revision": EVIL, EVIL: EVIL}
    directory = shutil.move(
        plain(tmp_path / "a", modules_to_save=[EVIL], target_modules=[EVIL], **words), tmp_path / EVIL
    )
    done = cli("add", directory)
    assert done.code == 0, done.err
    digest = done.out.strip()
    for text in (done.err, cli.ok("show", digest), cli.ok("list")):
        assert all(line.isprintable() for line in text.splitlines())
    refused = cli("add", plain(tmp_path / "b", rank_pattern={EVIL: 4}), plain(tmp_path / "c", peft_type=EVIL))
    assert (refused.code, len(refused.err.splitlines())) == (2, 2)
    assert all(line.isprintable() for line in refused.err.splitlines())


def test_huge_settings_are_cut_where_they_are_shown(cli: CommandLine, tmp_path: Path) -> None:
    names = [f"{'x' * 200}{number}" for number in range(3000)]
    source = plain(tmp_path / "a", target_modules=[*names, Q], modules_to_save=names, invented=names)
    done = cli("add", source)
    assert done.code == 0, done.err[:1000]
    assert len(done.err) < 20_000
    assert cli.ok("list")
