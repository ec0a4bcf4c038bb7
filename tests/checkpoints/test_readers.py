"""Which reader takes a path, and what of a directory is an adapter's."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry import Registry
from registry.checkpoints import peft_directory, read_checkpoint, readers
from registry.core.errors import ChangedWhileRead, NotFound, Refused, RegistryError
from registry.core.layout import ADAPTER_FILES, CONFIG, PICKLED, WEIGHTS
from registry.operations import export
from tests.support.merging import factors
from tests.support.runs import write_checkpoint
from tests.support.taking import Q, kept, pickled, plain, refused, warnings_of
from tests.support.trees import contents


def test_each_kind_is_taken_by_its_reader(tmp_path: Path) -> None:
    trainer, adapter = write_checkpoint(tmp_path / "run"), plain(tmp_path / "a")
    for path in (trainer, trainer / "trainer.pt"):
        assert read_checkpoint(str(path)).reader == "aorlta"
    for path in (adapter, adapter / WEIGHTS, adapter / CONFIG):
        read = read_checkpoint(str(path))
        assert (read.reader, read.path) == ("peft", str(adapter / WEIGHTS))
    assert read_checkpoint(str(pickled(tmp_path / "b", factors(Q)))).path == str(tmp_path / "b" / PICKLED)


def test_names_and_what_is_looked_for_are_told_apart() -> None:
    assert len({reader.NAME for reader in readers.READERS}) == len(readers.READERS)
    assert len({reader.LOOKS_FOR for reader in readers.READERS}) == len(readers.READERS)


def test_a_directory_of_two_kinds_is_refused_and_its_files_are_not(home: Path, tmp_path: Path) -> None:
    both = write_checkpoint(tmp_path / "run")
    plain(both)
    (both / "manifest.json").unlink()
    refused(home, both, "more than one kind.*trainer.pt, adapter_config.json.*Name the file")
    assert read_checkpoint(str(both / "trainer.pt")).reader == "aorlta"
    assert read_checkpoint(str(both / WEIGHTS)).reader == "peft"


def test_what_is_nothing_is_not_found_and_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(NotFound, match=r"holds no trainer\.pt and no adapter_config\.json"):
        read_checkpoint(str(tmp_path / "a"))
    with pytest.raises(NotFound, match="no such file"):
        read_checkpoint(str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("name", "says"), [(CONFIG, "holds no adapter_config.json"), (WEIGHTS, "and no adapter_model.bin")]
)
def test_half_an_adapter_is_refused_and_says_what_is_missing(name: str, says: str, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    (source / name).unlink()
    refused(home, source, says)


@pytest.mark.parametrize("below", ["checkpoint-5/policy", "a", "a/b/c"])
def test_peft_718_the_one_adapter_below_is_taken_and_that_is_said(below: str, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "out" / below)
    (tmp_path / "out" / "empty").mkdir()
    added = Registry(home).add(tmp_path / "out", run="run")
    assert warnings_of(added) == [f"taken from the subfolder {below}"]
    assert added.digest == Registry(home).add(source).digest
    assert added.manifest["checkpoint"]["path"] == str(source / WEIGHTS)


def test_peft_718_several_adapters_below_are_refused_and_listed(home: Path, tmp_path: Path) -> None:
    for name in ("checkpoint-5/policy", "checkpoint-10/policy"):
        plain(tmp_path / "out" / name)
    error = refused(home, tmp_path / "out", "2 adapters in its subfolders.*Name one of them")
    assert error.found == "checkpoint-10/policy, checkpoint-5/policy"


def test_an_adapter_at_the_top_is_taken_whatever_is_below(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "out")
    plain(source / "checkpoint-5")
    assert warnings_of(kept(home, source)) == []


def test_what_lies_too_deep_or_hidden_or_is_half_or_linked_is_not_taken(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain(out / "a" / "b" / "c" / "d")
    plain(out / ".cache")
    (plain(out / "half") / WEIGHTS).unlink()
    (out / "linked").symlink_to(plain(tmp_path / "elsewhere"))
    (out / "loop").symlink_to(out)
    with pytest.raises(NotFound):
        read_checkpoint(str(out))


def test_sglang_17905_only_the_documented_files_come_out(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    for name in ("added_tokens.json", "optimizer.pt", "README.md", "trainer_state.json", "tokenizer.json"):
        (source / name).write_text("{}")
    added = kept(home, source)
    Registry(home).get(added.digest.hex, tmp_path / "got")
    assert sorted(contents(tmp_path / "got")) == sorted(ADAPTER_FILES)


def test_huggingface_hub_4469_good_links_are_followed(home: Path, tmp_path: Path) -> None:
    blobs, source = plain(tmp_path / "blobs"), tmp_path / "snapshot"
    source.mkdir()
    for name in (WEIGHTS, CONFIG):
        (source / name).symlink_to(Path("..") / "blobs" / name)
    (source / "unrelated").symlink_to("nowhere")
    assert kept(home, source).digest == kept(home, blobs).digest


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
@pytest.mark.parametrize("leads", ["nowhere", "itself"])
def test_huggingface_hub_4469_a_dangling_link_is_refused_by_name(
    leads: str, name: str, home: Path, tmp_path: Path
) -> None:
    source = plain(tmp_path / "a")
    (source / name).unlink()
    (source / name).symlink_to(name if leads == "itself" else "nowhere")
    error = refused(home, source, "a symbolic link that leads nowhere")
    assert error.path == str(source / name)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_a_file_that_is_no_file_is_refused_without_waiting(make: Any, name: str, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    (source / name).unlink()
    make(source / name)
    with pytest.raises(Refused, match="not a regular file"):
        Registry(home).add(source)
    assert not home.exists()


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_file_that_changes_while_it_is_read_is_refused(name: str, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    done = threading.Event()

    def change(_count: int, _size: int) -> None:
        if not done.is_set():
            done.set()
            with (source / name).open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b" ")

    with pytest.raises(ChangedWhileRead, match="changed while"):
        Registry(home).add(source, progress=change)
    assert not home.exists()


def test_progress_adds_up_to_the_file(tmp_path: Path) -> None:
    for source in (plain(tmp_path / "a"), pickled(tmp_path / "b", factors(Q))):
        seen: list[tuple[int, int]] = []
        read = read_checkpoint(str(source), progress=lambda count, total, seen=seen: seen.append((count, total)))
        assert sum(count for count, _ in seen) == read.size
        assert {total for _, total in seen} == {read.size}


@pytest.mark.parametrize("run", ["a\nb", "\u202ex", "\x1b[0m"])
def test_a_run_that_is_not_printable_is_refused(run: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a printable name"):
        Registry(home).add(plain(tmp_path / "a"), run=run)
    assert not home.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"peft_type": "LOHA"},
        {"peft_type": None},
        {"target_modules": 3},
        {"modules_to_save": "lm_head"},
        {"rank_pattern": {"(": 2}},
        {"alpha_pattern": {"q_proj": 0}},
        {"r": None},
    ],
    ids=str,
)
def test_a_config_that_cannot_be_used_is_refused_with_its_path(
    change: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    source = plain(tmp_path / "a", **change)
    with pytest.raises(Refused) as caught:
        Registry(home).add(source)
    assert caught.value.path == str(source / CONFIG)
    assert not home.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "bias",
    "modules_to_save", "use_dora", "use_rslora", "lora_bias", "target_parameters", "init_lora_weights",
    "base_model_name_or_path", "revision", "fan_in_fan_out", "trainable_token_indices", "peft_version", "new",
]  # fmt: skip


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=3),
    name=st.sampled_from([Q, "", "é", "\x00", "a.b"]) | st.text(max_size=6),
)
def test_a_config_that_says_anything_gives_an_adapter_or_an_error_of_ours(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    directory = tmp_path / "a"
    directory.mkdir(exist_ok=True)
    plain(directory, state={f"base_model.model.{key.replace(Q, name)}": value for key, value in NAMED.items()})
    config = json.loads((directory / CONFIG).read_text()) | changes
    (directory / CONFIG).write_text(json.dumps(config))
    try:
        read = read_checkpoint(str(directory))
        prepared = export.prepare(read)
        export.manifest_of(prepared, prepared.config, "2026-01-01T00:00:00Z")
    except RegistryError as error:
        assert str(error)  # noqa: PT017


NAMED = {f"{Q}.lora_A.weight": factors(Q)[f"base_model.model.{Q}.lora_A.weight"]}


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(target=st.sampled_from([CONFIG, WEIGHTS]), at=st.floats(0, 1), put=st.binary(max_size=8), cut=st.integers(0, 8))
def test_a_damaged_adapter_gives_an_adapter_or_an_error_of_ours(
    tmp_path: Path, target: str, at: float, put: bytes, cut: int
) -> None:
    (tmp_path / "a").mkdir(exist_ok=True)
    source = plain(tmp_path / "a")
    data = (source / target).read_bytes()
    place = int(at * len(data))
    (source / target).write_bytes(data[:place] + put + data[place + cut :])
    try:
        export.prepare(read_checkpoint(str(source)))
    except RegistryError as error:
        assert str(error)  # noqa: PT017


def test_an_adapter_is_not_taken_for_one_by_its_name_alone(tmp_path: Path) -> None:
    assert not peft_directory.detects(str(tmp_path))
    (tmp_path / PICKLED).touch()
    assert peft_directory.detects(str(tmp_path))
    assert not peft_directory.is_whole(str(tmp_path))
