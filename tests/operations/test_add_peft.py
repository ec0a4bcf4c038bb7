"""Adding PEFT adapters: one digest has one function, whatever the config's words; races and damage change nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.checkpoints import read_checkpoint
from registry.core import records
from registry.core.errors import ConfigConflict
from registry.core.layout import CONFIG, WEIGHTS
from registry.operations import export
from registry.store import LocalStore
from tests.support.merging import edit_config, factors, llama, make_adapter, make_base, save_adapter
from tests.support.process import COMMAND, CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.taking import PREFIX, QUIET, Q, V, kept, plain, warnings_of
from tests.support.trees import flip, snapshot


def stored_config(home: Path, digest: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(Registry(home).path(digest.hex)) / CONFIG).read_text())
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"lora_alpha": 16},
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 3}},
        {"fan_in_fan_out": True},
        {"target_modules": ["v_proj"]},
        {"modules_to_save": ["router"]},
        {"bias": "all"},
        {"init_lora_weights": "pissa"},
        {"layer_replication": [[0, 1]]},
        {"invented": 1},
    ],
    ids=str,
)
def test_the_same_weights_with_a_config_of_another_function_are_refused_and_both_are_shown(
    change: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    extra = {f"{PREFIX}model.router.weight": torch.ones(4, 4), f"{PREFIX}{V}.bias": torch.ones(24)}
    source = plain(tmp_path / "a", Q, V, state=extra, target_modules=["q_proj", "v_proj"])
    added = kept(home, source)
    before = snapshot(home / "adapters", home / "records", home / "pending")
    edit_config(source, **change)
    with pytest.raises(ConfigConflict, match="another function") as caught:
        Registry(home).add(source)
    (key,) = change
    assert caught.value.key == str(added.digest)
    assert str(caught.value.found).startswith(f"{key} ")
    assert str(caught.value.expected).startswith(f"{key} ")
    assert caught.value.found != caught.value.expected
    assert snapshot(home / "adapters", home / "records", home / "pending") == before
    assert len(Registry(home).show(added.digest.hex).exports) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"lora_dropout": 0.1},
        {"base_model_name_or_path": "org/other"},
        {"rank_pattern": {"q_proj": 4}},
        {"alpha_pattern": {"q_proj": 8}},
        {"target_modules": ["q_proj", "v_proj", "k_proj"]},
        {"target_modules": ".*_proj"},
        {"target_modules": None},
        {"invented": None, "other": False},
        {"peft_version": "0.1"},
        {"use_dora": False, "use_rslora": False, "bias": "none", "init_lora_weights": True},
    ],
    ids=str,
)
def test_other_words_for_the_same_function_are_fine_and_the_stored_ones_stay(
    change: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    source = plain(tmp_path / "a", Q, V, target_modules=["q_proj", "v_proj"])
    added, config = kept(home, source), (source / CONFIG).read_bytes()
    edit_config(source, **change)
    assert (source / CONFIG).read_bytes() != config
    again = Registry(home).add(source, run="again")
    assert (again.digest, again.outcome, again.new_export) == (added.digest, "already present", True)
    assert (Path(Registry(home).path(added.digest.hex)) / CONFIG).read_bytes() == config
    assert f"stored already, with another text of {CONFIG} that means the same" in warnings_of(again)
    assert not Registry(home).add(source, run="again").new_export


def test_a_corrupt_copy_is_replaced_but_never_by_another_function(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    added = kept(home, source)
    weights = home / "adapters" / added.digest.hex[:2] / added.digest.hex / WEIGHTS
    flip(weights)
    edit_config(source, lora_alpha=16)
    with pytest.raises(ConfigConflict):
        Registry(home).add(source)
    edit_config(source, lora_alpha=8)
    assert Registry(home).add(source).outcome == "repaired"
    assert stored_config(home, added.digest)["lora_alpha"] == 8


def test_an_exported_checkpoint_and_its_adapter_added_anywhere_are_one_adapter(home: Path, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "run")
    added = Registry(home).add(checkpoint)
    Registry(home).get(added.digest.hex, tmp_path / "got")
    taken = kept(tmp_path / "other", tmp_path / "got", run="run")
    assert taken.digest == added.digest
    ours, theirs = (each.manifest["adapter"] for each in (added, taken))
    assert ours == theirs
    lost = {"config_sha256": None}
    assert taken.manifest["run"] == added.manifest["run"] | lost
    assert taken.manifest["lora"] == added.manifest["lora"]
    later = Registry(tmp_path / "other").add(checkpoint)
    assert (later.digest, later.outcome, later.new_export) == (added.digest, "already present", True)


def test_the_config_of_an_exported_adapter_cannot_be_given_another_function(home: Path, tmp_path: Path) -> None:
    added = Registry(home).add(write_checkpoint(tmp_path / "run"))
    Registry(home).get(added.digest.hex, tmp_path / "got")
    edit_config(tmp_path / "got", target_modules=["q_proj"])
    with pytest.raises(ConfigConflict):
        Registry(home).add(tmp_path / "got")


def test_the_same_tensors_in_a_checkpoint_and_a_directory_have_one_tensor_digest(home: Path, tmp_path: Path) -> None:
    state = lora_state()
    trained = Registry(home).add(write_checkpoint(tmp_path / "run", contents(state)))
    saved = kept(home, save_adapter(tmp_path / "a", {f"{PREFIX}{key}": value for key, value in state.items()}, **QUIET))
    assert saved.digest != trained.digest
    assert Registry(home).show(saved.digest.hex).same_tensors == (trained.digest,)


@pytest.mark.parametrize(
    "other",
    [
        {f"{PREFIX}{Q}.lora_magnitude_vector": 2 * torch.ones(24)},
        {f"{PREFIX}{Q}.lora_B.bias": 2 * torch.ones(24)},
        {f"{PREFIX}lm_head.weight": 2 * torch.ones(4, 4)},
        {f"{PREFIX}model.router.weight": 2 * torch.ones(4, 4)},
        {
            f"{PREFIX}model.embed_tokens.lora_embedding_A": 2 * torch.ones(4, 9),
            f"{PREFIX}model.embed_tokens.lora_embedding_B": torch.ones(8, 4),
        },
    ],
    ids=lambda state: next(iter(state)),
)
def test_the_tensor_digest_covers_every_tensor(other: dict[str, torch.Tensor], home: Path, tmp_path: Path) -> None:
    key = next(iter(other))
    settings = {"use_dora": "magnitude" in key, "lora_bias": "bias" in key}
    state, digests = factors(Q), set()
    for number, extra in enumerate((other, {**other, key: other[key] + 1})):
        source = plain(tmp_path / str(number), state={**state, **extra}, **settings)
        digests.add(kept(home, source).manifest["adapter"]["tensor_digest"])
    assert len(digests) == 2


def test_of_two_processes_that_give_one_digest_two_functions_one_wins(tmp_path: Path) -> None:
    state = factors(Q)
    sources = [plain(tmp_path / str(alpha), state=state, lora_alpha=alpha) for alpha in (8, 16)]
    for attempt in range(3):
        home = tmp_path / f"home{attempt}"
        environment = CommandLine(home).environment()
        running = [
            subprocess.Popen([*COMMAND, "add", source], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for source in sources
        ]
        messages = [process.communicate(timeout=60)[1] for process in running]
        assert sorted(process.returncode for process in running) == [0, 6], messages
        store = LocalStore(str(home))
        (digest,) = store.digests()
        (record,) = store.records(digest, records.EXPORT)
        assert record.predicate["lora"]["lora_alpha"] == stored_config(home, digest)["lora_alpha"]
        assert store.unsettled() == []


def test_what_a_killed_writer_announced_of_another_function_is_forgotten(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    prepared = export.prepare(read_checkpoint(str(source)))
    manifest = export.manifest_of(prepared, prepared.config, "2026-01-01T00:00:00Z")
    edit_config(source, lora_alpha=16)
    added, store = Registry(home).add(source), LocalStore(str(home))
    store.announce(records.make(records.EXPORT, added.digest, manifest))
    found = Registry(home).show(added.digest.hex)
    assert (found.lora_alpha, len(found.exports)) == (16, 1)
    assert len(store.records(added.digest, records.EXPORT)) == 1
    assert store.unsettled() == []


def test_a_diff_and_a_merge_of_adapters_that_were_taken_work(home: Path, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", llama(num_hidden_layers=1))
    one = kept(home, make_adapter(tmp_path / "a", base, target_modules=["q_proj"]))
    two = kept(home, make_adapter(tmp_path / "b", base, target_modules=["q_proj", "v_proj"]))
    assert Registry(home).diff(one.digest.hex, two.digest.hex)
    merged = Registry(home).merge(two.digest.hex, base, tmp_path / "merged")
    assert merged.manifest["tensors"]["changed"] == 2
