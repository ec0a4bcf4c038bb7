"""`aorlta-reg get` and `path`: references, and where the files are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from registry import Registry
from registry.adapter import encode
from registry.checkpoints import read_checkpoint
from registry.core.layout import ADAPTER_FILES
from tests.cli.conftest import Shelf
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.strace import inject, needs_strace
from tests.support.trees import contents as files_in
from tests.support.trees import flip, snapshot

MODULE = ("model.layers.0.self_attn.q_proj",)


@pytest.mark.parametrize(
    "spell",
    [
        lambda digest: digest,
        lambda digest: f"sha256:{digest}",
        lambda digest: f"SHA256:{digest.upper()}",
        lambda digest: f"  {digest}\n",
        lambda digest: digest[:4],
        lambda digest: digest[:13].upper(),
        lambda digest: f"sha256:{digest[:63]}",
    ],
    ids=["full", "marked", "upper case", "with spaces", "prefix", "upper prefix", "marked prefix"],
)
def test_every_spelling_of_a_reference_finds_the_adapter(spell, shelf: Shelf) -> None:
    assert shelf.cli.ok("path", spell(shelf.hex)) == str(shelf.directory)


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("0" * 64, 3),
        ("sha256:" + "0" * 64, 3),
        ("0000", 3),
        ("best", 3),
        ("../adapters", 3),
        ("abc", 2),
        ("sha256:abc", 2),
        ("", 2),
        ("   ", 2),
        ("sha256:", 2),
        ("sha256:xyzw", 2),
        ("a" * 65, 2),
    ],
)
def test_what_names_no_adapter_exits_3_and_what_cannot_name_one_2(
    reference: str, code: int, shelf: Shelf, tmp_path: Path
) -> None:
    done = shelf.cli("get", reference, "--to", tmp_path / "out")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("aorlta-reg: ")
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def alphas_that_share_a_prefix(checkpoint: Path) -> tuple[int, int]:
    """Two values of alpha whose adapters' digests start with the same four digits: some 300 tries find a pair."""
    lora, seen = read_checkpoint(str(checkpoint)).lora, dict[str, int]()
    for alpha in range(1, 5000):
        data = b"".join(encode(replace(lora, settings=replace(lora.settings, alpha=alpha))).chunks())
        prefix = hashlib.sha256(data).hexdigest()[:4]
        if prefix in seen:
            return seen[prefix], alpha
        seen[prefix] = alpha
    raise AssertionError


def test_prefix_of_two_adapters_exits_4_and_lists_them(cli: CommandLine, tmp_path: Path) -> None:
    state = lora_state(modules=MODULE)
    alphas = alphas_that_share_a_prefix(write_checkpoint(tmp_path / "probe", contents(state)))
    made = [write_checkpoint(tmp_path / str(a), contents(state, alpha=a), config={}) for a in alphas]
    one, two = sorted(Registry(cli.home).add(each).digest.hex for each in made)
    assert one[:4] == two[:4]
    done = cli("path", one[:4])
    assert (done.code, done.out) == (4, "")
    assert one[:12] in done.err
    assert two[:12] in done.err
    assert cli("get", one[:4], "--to", tmp_path / "out").code == 4
    assert not (tmp_path / "out").exists()
    unique = next(length for length in range(5, 65) if one[:length] != two[:length])
    assert cli.ok("path", two[:unique]).endswith(two)


def test_ambiguous_prefix_lists_ten_and_says_that_there_are_more(shelf: Shelf, tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / "home" / "adapters" / "ab" / ("abcd" + f"{number:060x}")).mkdir(parents=True)
    done = CommandLine(tmp_path / "home")("path", "abcd")
    assert done.code == 4
    assert done.err.count("abcd00000000") == 10
    assert "..." in done.err
    assert shelf.hex not in done.err


def test_get_makes_a_directory_and_prints_it(shelf: Shelf, tmp_path: Path) -> None:
    done = shelf.cli("get", shelf.hex[:8], "--to", "out", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, f"{tmp_path / 'out'}\n", "")
    assert files_in(tmp_path / "out") == files_in(shelf.directory)
    again = shelf.cli("get", shelf.hex[:8], "--to", tmp_path / "out")
    assert (again.code, again.out) == (2, "")
    assert "exists" in again.err
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_get_replaces_another_adapter_only_by_force(shelf: Shelf, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", contents(lora_state(seed=8)))
    cli, out = CommandLine(tmp_path / "home"), tmp_path / "out"
    digest = cli.ok("add", other)
    shelf.cli.ok("get", shelf.hex, "--to", out)
    done = cli("get", digest, "--to", out)
    assert (done.code, done.out) == (2, "")
    assert files_in(out) == files_in(shelf.directory)
    for _ in range(2):
        assert cli.ok("get", digest, "--to", out, "--force") == str(out)
        assert files_in(out) == files_in(Path(cli.ok("path", digest)))
    assert cli.ok("get", digest, "--to", tmp_path / "new", "--force") == str(tmp_path / "new")
    (out / "notes.txt").write_text("mine")
    before = files_in(out)
    done = shelf.cli("get", shelf.hex, "--to", out, "--force")
    assert (done.code, done.out) == (2, "")
    assert "notes.txt" in done.err
    assert files_in(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "new", "other", "out"]


def test_damaged_adapter_replaces_nothing(shelf: Shelf, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shelf.cli.ok("get", shelf.hex, "--to", out)
    before = snapshot(tmp_path)
    flip(shelf.directory / "adapter_model.safetensors")
    try:
        assert shelf.cli("get", shelf.hex, "--to", out, "--force").code == 5
    finally:
        flip(shelf.directory / "adapter_model.safetensors")
    assert files_in(out) == files_in(shelf.directory)
    assert snapshot(out).keys() == {path for path in before if path != str(tmp_path)}


@needs_strace
@pytest.mark.parametrize("error", ["ENOSYS", "EINVAL"])
def test_file_system_that_cannot_exchange_directories_has_them_replaced_in_two_steps(
    error: str, shelf: Shelf, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "adapter_config.json").write_text("old")
    done = inject(shelf.cli, "get", shelf.hex, "--to", out, "--force", fault=f"renameat2:error={error}")
    assert (done.code, done.out) == (0, f"{out}\n"), done.err
    assert files_in(out) == files_in(shelf.directory)
    assert list(tmp_path.iterdir()) == [out]


@needs_strace
@pytest.mark.parametrize("faults", ["renameat2:error=EIO", "renameat2:error=EINVAL rename:error=EIO:when=2"])
def test_new_adapter_that_cannot_take_the_old_ones_place_leaves_it_there(
    faults: str, shelf: Shelf, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "adapter_config.json").write_text("old")
    done = inject(shelf.cli, "get", shelf.hex, "--to", out, "--force", fault=faults)
    assert (done.code, done.out) == (7, "")
    assert files_in(out) == {"adapter_config.json": b"old"}
    assert list(tmp_path.iterdir()) == [out]


def test_checkpoint_and_registry_are_never_replaced(shelf: Shelf, tmp_path: Path) -> None:
    run = shelf.checkpoint.parent.parent
    for target in (shelf.checkpoint, run, shelf.cli.home, shelf.cli.home.parent, shelf.directory, tmp_path.parent, "/"):
        before = snapshot(shelf.checkpoint)
        done = shelf.cli("get", shelf.hex, "--to", target, "--force")
        assert (done.code, done.out) == (2, ""), target
        assert snapshot(shelf.checkpoint) == before
    assert shelf.cli.ok("path", shelf.hex)


def test_get_into_the_registry_is_refused(shelf: Shelf) -> None:
    before = sorted(shelf.cli.home.iterdir())
    done = shelf.cli("get", shelf.hex, "--to", shelf.cli.home / "out")
    assert (done.code, done.out) == (2, "")
    assert sorted(shelf.cli.home.iterdir()) == before


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_one_wrong_bit_exits_5_names_the_file_and_hands_out_nothing(name: str, shelf: Shelf, tmp_path: Path) -> None:
    flip(shelf.directory / name)
    try:
        for arguments in (("get", shelf.hex, "--to", tmp_path / "out"), ("path", shelf.hex)):
            done = shelf.cli(*arguments)
            assert (done.code, done.out) == (5, "")
            assert name in done.err
    finally:
        flip(shelf.directory / name)
    assert list(tmp_path.iterdir()) == []


def test_errors_are_json_on_stderr_when_json_is_asked_for(shelf: Shelf) -> None:
    done = shelf.cli("path", "0000", "--json")
    assert (done.code, done.out) == (3, "")
    error = json.loads(done.err)["error"]
    assert (error["kind"], error["key"]) == ("NotFound", "0000")


def test_home_can_be_an_option_a_variable_or_the_users_data_directory(shelf: Shelf, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "aorlta-reg").symlink_to(shelf.cli.home)
    elsewhere = CommandLine(tmp_path / "elsewhere")
    assert elsewhere("path", shelf.hex).code == 3
    assert elsewhere("path", shelf.hex, "--home", shelf.cli.home).out == f"{shelf.directory}\n"
    found = elsewhere("path", shelf.hex, AORLTA_REG_HOME="", XDG_DATA_HOME=str(data))
    assert found.out.strip().endswith(shelf.hex)
    assert not elsewhere.home.exists()
