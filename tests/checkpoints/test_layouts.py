"""Trainers' checkpoints: where the adapter lies, which step it is, what is not whole, and that it stays what it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from registry import Registry
from registry.checkpoints import lacks, layouts, read_checkpoint, run_checkpoints
from registry.core.errors import UnsupportedLora
from registry.core.layout import CONFIG, PICKLED, WEIGHTS
from tests.support.merging import edit_config, llama, load_adapted, make_adapter, make_base
from tests.support.taking import PREFIX, plain, refused, warnings_of
from tests.support.trainers import (
    MAKERS,
    VERBATIM,
    Maker,
    adapter_in,
    miles,
    prime_rl,
    prime_rl_weights,
    producer_of,
    torchtune,
    torchtunes_own,
    transformers,
    verl,
    weaken,
)
from tests.support.trees import snapshot

STEP = 12


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), llama())


@pytest.fixture(scope="module")
def source(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What peft itself saved."""
    settings = {"target_modules": ["q_proj", "down_proj"], "lora_alpha": 24, "task_type": "CAUSAL_LM"}
    return make_adapter(tmp_path_factory.mktemp("source"), base, **settings)


@pytest.fixture(params=MAKERS)
def producer(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_every_layout_is_made_by_the_tests() -> None:
    assert {layout.producer for layout in layouts.LAYOUTS} == {producer_of(label) for label in MAKERS}


def test_peft_loads_what_comes_out_as_what_the_trainer_had(
    producer: str, base: Path, source: Path, home: Path, tmp_path: Path
) -> None:
    checkpoint = MAKERS[producer](tmp_path / "run", STEP, source)
    before = snapshot(tmp_path / "run")
    registry = Registry(home)
    added = registry.add(checkpoint, run="mine")
    assert snapshot(tmp_path / "run") == before
    stated = added.manifest
    assert (stated["checkpoint"]["reader"], stated["run"]["iteration"]) == (producer_of(producer), STEP)
    file = next(path for path in (adapter_in(checkpoint) / name for name in (WEIGHTS, PICKLED)) if path.exists())
    data = file.read_bytes()
    assert stated["checkpoint"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert (stated["derived"] is None) == (producer in VERBATIM)
    if producer in VERBATIM:
        assert (Path(registry.path(added.digest.hex)) / WEIGHTS).read_bytes() == data
    else:
        assert stated["derived"]["from"] == stated["checkpoint"]["sha256"]
    got = Path(registry.get(added.digest.hex, tmp_path / "got"))
    trained, model = load_file(source / WEIGHTS), load_adapted(base, got)
    compared = 0
    for key, a in trained.items():
        if ".lora_A." not in key:
            continue
        b = trained[key.replace(".lora_A.", ".lora_B.")]
        module = model.get_submodule(key.removesuffix(".lora_A.weight"))
        assert torch.equal(module.get_delta_weight("default"), (b @ a) * (24 / 4))
        compared += 1
    assert compared == 4


def test_its_directory_that_of_the_adapter_and_the_file_are_one_checkpoint(
    producer: str, source: Path, tmp_path: Path
) -> None:
    checkpoint = MAKERS[producer](tmp_path / "run", STEP, source)
    adapter = adapter_in(checkpoint)
    between = [path for path in adapter.parents if checkpoint in path.parents]
    (tmp_path / "latest").symlink_to(checkpoint)
    file = next(path for path in adapter.iterdir() if path.name in (WEIGHTS, PICKLED))
    read = [read_checkpoint(str(each)) for each in (checkpoint, *between, adapter, file, tmp_path / "latest")]
    assert {(each.reader, each.provenance.iteration, each.digest) for each in read} == {
        (producer_of(producer), STEP, read[0].digest)
    }


def test_run_lists_its_checkpoints_by_step_and_nothing_else(producer: str, source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    made = [MAKERS[producer](run, step, source) for step in (100, 9, 20)]
    for other in ("logs", "checkpoint-x", "global_step_", "step_1x", "tensorboard"):
        plain(run / other)
    (run / f"{made[0].name}.json").write_text("{}")
    (made[0].parent / "checkpoint-7").mkdir()
    assert run_checkpoints(str(run)) == [(str(made[at]), step) for at, step in ((1, 9), (2, 20), (0, 100))]
    assert run_checkpoints(str(made[0])) == [], "a checkpoint is no run"


@pytest.mark.parametrize("affix", ["tmp-{}", "tmp_{}", "{}.tmp", "{}.incomplete"])
def test_a_name_that_says_unfinished_is_believed(
    affix: str, producer: str, source: Path, home: Path, tmp_path: Path
) -> None:
    whole = MAKERS[producer](tmp_path / "run", STEP, source)
    checkpoint = whole.rename(whole.with_name(affix.format(whole.name)))
    refused(home, checkpoint, "is not whole yet.*says that it is being written")
    assert run_checkpoints(str(tmp_path / "run")) == [(str(checkpoint), STEP)]
    assert "being written" in (lacks(str(checkpoint)) or "")


@pytest.mark.parametrize("name", [CONFIG, "weights"])
def test_half_a_checkpoint_is_refused_and_in_a_run_it_is_incomplete(
    name: str, producer: str, source: Path, home: Path, tmp_path: Path
) -> None:
    checkpoint = MAKERS[producer](tmp_path / "run", STEP, source)
    adapter = adapter_in(checkpoint)
    for path in list(adapter.iterdir()):
        if path.name == name or (name == "weights" and path.name in (WEIGHTS, PICKLED)):
            path.unlink()
    refused(home, checkpoint, "holds no adapter_")
    assert lacks(str(checkpoint)) == (f"no {CONFIG}" if name == CONFIG else f"no {WEIGHTS}")


def test_a_half_file_is_refused(producer: str, source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = MAKERS[producer](tmp_path / "run", STEP, source)
    file = next(path for path in adapter_in(checkpoint).iterdir() if path.name in (WEIGHTS, PICKLED))
    os.truncate(file, file.stat().st_size * 6 // 10)
    refused(home, checkpoint, "truncated|shorter|ends|not a zip|cut")


@pytest.mark.parametrize("maker", [prime_rl, prime_rl_weights])
def test_prime_rl_without_its_marker_is_refused(maker: Maker, source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = maker(tmp_path / "run", STEP, source)
    (checkpoint / "STABLE").unlink()
    refused(home, checkpoint, "is not whole yet.*no STABLE, which prime-rl writes last.*Let the trainer finish")
    refused(home, adapter_in(checkpoint), "is not whole yet.*no STABLE")
    (checkpoint / "STABLE").touch()
    assert Registry(home).add(checkpoint).manifest["run"]["iteration"] == STEP


def test_what_prime_rl_gave_its_engines_and_what_it_kept_are_one_adapter(
    source: Path, home: Path, tmp_path: Path
) -> None:
    registry = Registry(home)
    given, kept = (
        registry.add(maker(tmp_path / "run", STEP, source), run="mine") for maker in (prime_rl, prime_rl_weights)
    )
    assert given.digest == kept.digest
    assert registry.resolve(f"mine@{STEP}") == given.digest


@pytest.mark.parametrize(("name", "inside"), [("epoch_3", ""), ("iter_3", ""), ("step_3", ""), ("step_3", "adapter")])
def test_a_name_that_anyone_could_give_is_no_producers(name: str, inside: str, source: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(source, tmp_path / name / inside)
    read = read_checkpoint(str(directory))
    assert (read.reader, read.provenance.iteration) == ("peft", None)


def test_torchtunes_own_file_alone_is_refused_with_the_reason(source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = torchtune(tmp_path / "run", STEP, source)
    (checkpoint / WEIGHTS).unlink()
    (checkpoint / CONFIG).unlink()
    error = refused(home, checkpoint, "in its trainer's own form.*torchtune's own names", UnsupportedLora)
    assert error.path == str(checkpoint / "adapter_model.pt")


@pytest.mark.parametrize("name", ["adapter_model.pt", "adapter_0.pt", "anything.pt"])
def test_torchtunes_own_names_are_never_taken_for_those_of_the_base(name: str, home: Path, tmp_path: Path) -> None:
    torch.save(torchtunes_own(), tmp_path / name)
    refused(home, tmp_path / name, "torchtune's own names and order of rows", UnsupportedLora, alpha=8)


def test_miles_without_its_export_is_refused_with_the_reason(source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = miles(tmp_path / "run", STEP, source)
    for name in (PICKLED, CONFIG):
        (checkpoint / "adapter" / name).unlink()
    for path in (checkpoint, checkpoint / "adapter"):
        error = refused(home, path, "in its trainer's own form.*unless its export failed", UnsupportedLora)
        assert error.path == str(checkpoint / "adapter" / "adapter_megatron_rank0.pt")


def test_a_directory_of_prime_rls_name_elsewhere_is_any_adapters(source: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(source, tmp_path / "weights" / "step_3")
    read = read_checkpoint(str(elsewhere))
    assert (read.reader, read.provenance.iteration) == ("peft", None)


@pytest.mark.parametrize(("latest", "whole"), [("11", False), ("12", True), ("40\n", True), ("soon", True), ("", True)])
def test_verl_says_which_step_is_the_last_whole_one(
    latest: str, whole: bool, source: Path, home: Path, tmp_path: Path
) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    tracker = tmp_path / "run" / "latest_checkpointed_iteration.txt"
    tracker.write_text(latest)
    made = checkpoint.stat().st_mtime_ns
    os.utime(tracker, ns=(made - 1, made - 1))
    if whole:
        assert Registry(home).add(checkpoint).digest
    else:
        refused(home, checkpoint, "says that step 11 is the last that is whole")


def test_verls_steps_of_before_a_resume_are_whole(source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    tracker = tmp_path / "run" / "latest_checkpointed_iteration.txt"
    tracker.write_text("5")
    made = checkpoint.stat().st_mtime_ns
    os.utime(tracker, ns=(made + 1, made + 1))
    assert Registry(home).add(checkpoint, run="mine").manifest["run"]["iteration"] == STEP


def test_verl_1821_alpha_0_is_mended_from_verls_own_statement(source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    weaken(checkpoint)
    added = Registry(home).add(checkpoint, run="mine")
    assert added.manifest["lora"]["lora_alpha"] == 24
    assert added.manifest["alpha_source"] == "checkpoint"
    assert added.manifest["derived"]["changes"] == ["lora_alpha 24 is from lora_train_meta.json"]
    assert warnings_of(added) == ["lora_alpha 24 is from lora_train_meta.json", *warnings_of(added)[1:]]
    stored = json.loads((Path(Registry(home).path(added.digest.hex)) / CONFIG).read_text())
    assert stored["lora_alpha"] == 24
    assert Registry(home).add(checkpoint, alpha=24).digest == added.digest
    with pytest.raises(UnsupportedLora, match=r"alpha is stated in lora_train_meta\.json"):
        Registry(home).add(checkpoint, alpha=25)


def test_verl_5325_alpha_0_without_another_statement_is_refused(source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    weaken(checkpoint)
    (checkpoint / "actor" / "lora_train_meta.json").unlink()
    refused(home, checkpoint, "lora_alpha", UnsupportedLora)


@pytest.mark.parametrize("stated", [{"r": 4, "lora_alpha": 25}, {"r": 8, "lora_alpha": 24}])
def test_verls_two_statements_must_agree(stated: dict[str, int], source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    (checkpoint / "actor" / "lora_train_meta.json").write_text(json.dumps(stated))
    refused(home, checkpoint, "two files state it differently", UnsupportedLora)


@pytest.mark.parametrize("text", ["[]", "{}", '{"r": null, "lora_alpha": null}'])
def test_verls_statement_that_states_nothing_changes_nothing(
    text: str, source: Path, home: Path, tmp_path: Path
) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    (checkpoint / "actor" / "lora_train_meta.json").write_text(text)
    assert Registry(home).add(checkpoint, run="mine").manifest["derived"] is None


@pytest.mark.parametrize("text", ["{", '{"r": "four"}', '{"lora_alpha": "24"}'])
def test_verls_statement_that_cannot_be_read_is_refused(text: str, source: Path, home: Path, tmp_path: Path) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    (checkpoint / "actor" / "lora_train_meta.json").write_text(text)
    assert "lora_train_meta.json" in str(refused(home, checkpoint, "differently|JSON").path)


@pytest.mark.parametrize(
    ("state", "step", "says"),
    [
        ('{"global_step": 13}', 13, "the directory says step 12, trainer_state.json 13"),
        ('{"global_step": 12}', 12, None),
        ('{"global_step": "12"}', 12, None),
        ("[]", 12, None),
        ("{", 12, "trainer_state.json cannot be read"),
        (None, 12, None),
    ],
)
def test_trainers_own_state_says_the_step(
    state: str | None, step: int, says: str | None, source: Path, home: Path, tmp_path: Path
) -> None:
    checkpoint = transformers(tmp_path / "run", STEP, source)
    (checkpoint / "trainer_state.json").unlink()
    if state is not None:
        (checkpoint / "trainer_state.json").write_text(state)
    added = Registry(home).add(checkpoint, run="mine")
    assert added.manifest["run"]["iteration"] == step
    found = [warning for warning in warnings_of(added) if "trainer_state" in warning]
    assert [says is not None and says in warning for warning in found] == ([] if says is None else [True])


def test_an_export_of_ours_keeps_the_iteration_it_states(source: Path, home: Path, tmp_path: Path) -> None:
    registry = Registry(home)
    first = registry.add(transformers(tmp_path / "run", STEP, source), run="mine")
    copy = registry.get(first.digest.hex, tmp_path / "checkpoint-99")
    again = registry.add(copy)
    assert again.manifest["run"]["iteration"] == STEP
    assert (again.digest, again.new_export) == (first.digest, False)


@pytest.mark.parametrize("inside", ["critic", "actor/huggingface", "actor/lora_adapter/more"])
def test_what_lies_elsewhere_in_a_checkpoint_is_not_its_adapter(inside: str, source: Path, tmp_path: Path) -> None:
    checkpoint = verl(tmp_path / "run", STEP, source)
    other = shutil.copytree(source, checkpoint / inside)
    edit_config(other, lora_alpha=5)
    read = read_checkpoint(str(other))
    assert (read.reader, read.lora.settings.alpha) == ("peft", 5)


def test_keys_come_out_as_peft_writes_them(producer: str, source: Path, home: Path, tmp_path: Path) -> None:
    added = Registry(home).add(MAKERS[producer](tmp_path / "run", STEP, source), run="mine")
    stored = load_file(Path(Registry(home).path(added.digest.hex)) / WEIGHTS)
    wanted = load_file(source / WEIGHTS)
    assert stored.keys() == wanted.keys()
    assert all(key.startswith(PREFIX) for key in stored)
    assert all(torch.equal(stored[key], wanted[key]) for key in stored)


def break_symlink(checkpoint: Path) -> None:
    file = adapter_in(checkpoint) / CONFIG
    file.unlink()
    file.symlink_to("nowhere")


def swap_for_pickle(checkpoint: Path) -> None:
    for path in adapter_in(checkpoint).iterdir():
        if path.name in (WEIGHTS, PICKLED):
            path.write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")


def empty_tensor(checkpoint: Path) -> None:
    adapter = adapter_in(checkpoint)
    tensors = {f"{PREFIX}model.layers.0.self_attn.q_proj.lora_{part}.weight": torch.zeros(0) for part in "AB"}
    if (adapter / WEIGHTS).exists():
        from safetensors.torch import save_file

        save_file(tensors, adapter / WEIGHTS)
    else:
        torch.save(tensors, adapter / PICKLED)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (break_symlink, "leads nowhere"),
        (swap_for_pickle, "truncated, or not a|zip|torch"),
        (empty_tensor, "empty tensor"),
    ],
)
def test_a_spoiled_one_is_refused_beside_a_whole_one(
    spoil: Callable[[Path], None], says: str, producer: str, source: Path, home: Path, tmp_path: Path
) -> None:
    sound = MAKERS[producer](tmp_path / "run", STEP, source)
    broken = MAKERS[producer](tmp_path / "run", STEP + 1, source)
    spoil(broken)
    refused(home, broken, says)
    assert Registry(home).add(sound).digest
