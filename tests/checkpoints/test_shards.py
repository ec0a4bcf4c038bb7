"""Sharded checkpoints: joined to the bit if every rank is there and every element is, once; else refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftConfig, inject_adapter_in_model, set_peft_model_state_dict
from safetensors.torch import load_file

from registry import Registry
from registry.checkpoints import identify, lacks, read_checkpoint, run_checkpoints
from registry.checkpoints.joining import Piece, join
from registry.core.dtypes import BY_NAME
from registry.core.errors import MissingAlpha, Refused, UnsupportedLora
from registry.core.layout import WEIGHTS
from registry.core.tensor import Tensor, contiguous_strides
from tests.support.sharding import MODULES, full_state, make_shards
from tests.support.taking import PREFIX, plain, refused, warnings_of
from tests.support.trees import flip, snapshot

STEP = 30


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Shards of so many ranks, all of one process group; a copy's `actor` directory in a checkpoint of step 30."""
    root = tmp_path_factory.mktemp("shards")
    made: dict[int, dict[tuple[int, str], Path]] = {}
    copies = iter(range(1000))

    def copy(world: int = 2, *, r: int = 3, placement: str = "Shard(0)") -> Path:
        if world not in made:
            made[world] = make_shards(root / f"by-{world}", world)
        actor = root / f"run-{next(copies)}" / f"global_step_{STEP}" / "actor"
        shutil.copytree(made[world][r, placement], actor)
        return actor

    return copy


def assert_whole(home: Path, actor: Path, r: int = 3) -> None:
    """What comes out is what was there before it was split."""
    registry = Registry(home)
    before = snapshot(actor)
    added = registry.add(actor.parent, run="rl", base="org/base")
    assert snapshot(actor) == before
    stored = load_file(Path(registry.path(added.digest.hex)) / WEIGHTS)
    wanted = {key.replace(".default", ""): tensor for key, tensor in full_state(r).items()}
    assert stored.keys() == wanted.keys()
    assert all(torch.equal(stored[key], wanted[key]) for key in wanted)
    assert (added.manifest["lora"]["r"], added.manifest["lora"]["lora_alpha"]) == (r, 8)
    assert (added.manifest["checkpoint"]["reader"], added.manifest["run"]["iteration"]) == ("verl-shards", STEP)
    assert registry.add(actor.parent, run="rl", base="org/base").outcome.value == "already present"


@pytest.mark.parametrize(
    ("world", "how"),
    [
        (2, {}),  # 3 rows of lora_A on 2 ranks: 2 and 1
        (3, {"r": 1}),  # one row on 3 ranks: two have none
        (2, {"placement": "Shard(1)"}),
        (2, {"placement": "Replicate()"}),
        (1, {}),
    ],
)
def test_real_dtensors_are_joined_to_the_bit(
    world: int, how: dict[str, Any], saved: Callable[..., Path], home: Path
) -> None:
    assert_whole(home, saved(world, **how), how.get("r", 3))


def test_it_is_known_by_the_list_of_its_files(saved: Callable[..., Path]) -> None:
    actor = saved()
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(actor.glob("*.pt"))]
    wanted = hashlib.sha256("".join(lines).encode()).hexdigest()
    shard = actor / "model_world_size_2_rank_1.pt"
    for path in (actor.parent, actor, shard):
        read = read_checkpoint(str(path))
        assert (read.digest.hex, read.path, read.provenance.iteration) == (wanted, str(actor), STEP)
        assert identify(str(path)) == (str(actor), read.digest)
    assert read.size == sum(path.stat().st_size for path in actor.glob("*.pt"))


def test_its_warnings_tell_what_it_was_made_of(saved: Callable[..., Path], home: Path) -> None:
    added = Registry(home).add(saved().parent)
    assert warnings_of(added) == [
        "joined from the shards of 2 ranks",
        "2 other entries of each shard are not part of the adapter",
        "the base is not known: give it with --base",
        "the run is not known: give it with --run",
    ]


def test_shards_beside_the_checkpoint_itself_are_found(saved: Callable[..., Path], home: Path) -> None:
    actor = saved()
    flat = actor.parent.with_name("global_step_31")
    shutil.copytree(actor, flat)
    assert Registry(home).add(flat, run="sft").manifest["run"]["iteration"] == 31


def test_an_adapter_in_the_checkpoint_counts_and_its_shards_do_not(saved: Callable[..., Path], home: Path) -> None:
    actor = saved(r=4)
    plain(actor / "lora_adapter")
    assert Registry(home).add(actor.parent).manifest["checkpoint"]["reader"] == "verl"


def missing_rank(actor: Path) -> None:
    (actor / "model_world_size_3_rank_1.pt").unlink()


def two_saves(actor: Path) -> None:
    (actor / "model_world_size_3_rank_1.pt").rename(actor / "model_world_size_4_rank_1.pt")


def beyond(actor: Path) -> None:
    shutil.copy(actor / "model_world_size_3_rank_1.pt", actor / "model_world_size_3_rank_3.pt")


def swapped(actor: Path) -> None:
    one, other = (actor / f"model_world_size_3_rank_{rank}.pt" for rank in (0, 2))
    one.rename(actor / "x")
    other.rename(one)
    (actor / "x").rename(other)


def cut(actor: Path) -> None:
    os.truncate(actor / "model_world_size_3_rank_1.pt", 2000)


def other_keys(actor: Path) -> None:
    state = {key: tensor for key, tensor in full_state(3).items() if MODULES[0] in key}
    torch.save(state, actor / "model_world_size_3_rank_1.pt")


def payload(actor: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(actor / "touched"),)

    torch.save({"a.lora_A.weight": Attack()}, actor / "model_world_size_3_rank_1.pt")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (missing_rank, "no shard of 1 of 3 ranks: 1.*verl.model_merger"),
        (two_saves, "shards of saves by 3 and 4 ranks"),
        (beyond, "a shard of rank 3 of 3"),
        (swapped, "not of the rank that the file's name says.*rank 2"),
        (cut, "truncated|not a zip"),
        (other_keys, "do not hold the same tensors|describe it differently"),
        (payload, "another kind"),
    ],
)
def test_what_is_not_all_of_one_save_is_refused(
    spoil: Callable[[Path], None], says: str, saved: Callable[..., Path], home: Path
) -> None:
    actor = saved(3, r=4)  # 4 rows on 3 ranks: 2, 2, and none
    spoil(actor)
    refused(home, actor.parent, says)
    assert not (actor / "touched").exists()


def test_shards_of_one_size_that_swapped_names_are_refused(saved: Callable[..., Path], home: Path) -> None:
    actor = saved(2, r=4)  # 2 rows each: nothing but the mesh tells them apart
    one, other = (actor / f"model_world_size_2_rank_{rank}.pt" for rank in (0, 1))
    one.rename(actor / "x")
    other.rename(one)
    (actor / "x").rename(other)
    refused(home, actor.parent, "not of the rank that the file's name says.*rank 1", UnsupportedLora)


def test_a_shard_of_a_save_by_other_ranks_is_refused(saved: Callable[..., Path], home: Path) -> None:
    actor, wider = saved(1), saved(2)
    shutil.copy(wider / "model_world_size_2_rank_0.pt", actor / "model_world_size_1_rank_0.pt")
    refused(home, actor.parent, "split over other ranks than the file's name says.*2 ranks", UnsupportedLora)


def test_copies_that_differ_are_refused(saved: Callable[..., Path], home: Path) -> None:
    actor = saved(placement="Replicate()")
    state = full_state(3)
    state[next(iter(state))][0, 0] += 1
    for rank in (0, 1):
        torch.save(full_state(3) if rank else state, actor / f"model_world_size_2_rank_{rank}.pt")
    refused(home, actor.parent, "differs from the copy in model_world_size_2_rank_0.pt", UnsupportedLora)


def test_sums_that_were_not_added_up_are_refused(saved: Callable[..., Path], home: Path) -> None:
    refused(home, saved(placement="Partial()").parent, "a placement that is not joined.*Partial", UnsupportedLora)


@pytest.mark.parametrize(("meta", "kind"), [({"lora_alpha": None}, MissingAlpha), ({"r": 5}, UnsupportedLora)])
def test_alpha_and_r_are_read_and_never_guessed(
    meta: dict[str, Any], kind: type[Refused], saved: Callable[..., Path], home: Path
) -> None:
    actor = saved()
    stated = json.loads((actor / "lora_train_meta.json").read_text()) | meta
    (actor / "lora_train_meta.json").write_text(json.dumps(stated))
    with pytest.raises(kind):
        Registry(home).add(actor.parent)
    assert not home.exists()
    if kind is MissingAlpha:
        assert Registry(home).add(actor.parent, alpha=16).manifest["alpha_source"] == "option"


def test_a_run_of_shards_is_taken_and_what_is_being_written_waits(
    saved: Callable[..., Path], home: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for step in (9, 10, 11):
        shutil.copytree(saved(), run / f"global_step_{step}" / "actor")
    plain(run / "global_step_12" / "actor" / "lora_adapter")
    (run / "global_step_11" / "actor" / "model_world_size_2_rank_0.pt").unlink()
    assert [step for _, step in run_checkpoints(str(run))] == [9, 10, 11, 12]
    assert lacks(str(run / "global_step_11")) == "no shard of 1 of 2 ranks: 0"
    found = [(each.step, each.state.value) for each in Registry(home).add_run(run, run="rl")]
    assert found == [(9, "added"), (10, "added"), (11, "incomplete"), (12, "added")]
    again = [(each.step, each.state.value) for each in Registry(home).add_run(run, run="rl")]
    assert again == [(9, "known"), (10, "known"), (11, "incomplete"), (12, "known")]


def piece(shape: tuple[int, ...], shard: int | None, *local: int, dtype: str = "float32") -> Piece:
    data = memoryview(bytes(range(1, 1 + 4 * torch.zeros(local).numel())))
    return Piece(shape, shard, Tensor(BY_NAME[dtype], local, contiguous_strides(local), data), dtype)


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([piece((4, 2), 0, 2, 2), piece((4, 2), 0, 1, 2)], "not the part"),
        ([piece((4, 2), 0, 4, 2), piece((4, 2), 0, 0, 2)], "not the part"),
        ([piece((4, 2), 0, 2, 2), piece((4, 2), 1, 2, 2)], "differently"),
        ([piece((4, 2), 0, 2, 2), piece((4, 3), 0, 2, 3)], "differently"),
        ([piece((4, 2), 0, 2, 2), piece((4, 2), 0, 2, 2, dtype="int32")], "differently"),
        ([piece((4, 2), None, 4, 2), piece((4, 2), None, 3, 2)], "not the part"),
    ],
)
def test_parts_that_do_not_make_a_whole_are_refused(ranks: list[Piece], says: str) -> None:
    with pytest.raises(UnsupportedLora, match=says):
        join([{"a": each} for each in ranks], ["rank 0", "rank 1"])


def test_keys_of_peft_models_are_exported_as_modules(saved: Callable[..., Path]) -> None:
    read = read_checkpoint(str(saved()))
    assert [pair.module for pair in read.lora.pairs] == sorted(MODULES)
    assert read.stripped == ("base_model.model.",)
    assert PREFIX == "base_model.model."


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("__0_0.distcp", "__1_0.distcp", ".metadata"), "a torch.distributed checkpoint of 2 shards.*dcp_to_torch"),
        (("__0_0.distcp", "__2_0.distcp"), "the shard of rank 1, .metadata missing"),
        (("zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"), "ZeRO.*zero_to_fp32"),
        (("bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",), "the shard of rank 0, the shard of rank 1 missing"),
    ],
)
@pytest.mark.parametrize("below", ["", "global_step5", "pytorch_model_fsdp_0"])
def test_what_is_not_joined_here_is_refused_with_what_joins_it(
    names: tuple[str, ...], says: str, below: str, home: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoint-5" / below
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_bytes(b"shard")
    refused(home, tmp_path / "checkpoint-5", says)


def test_an_adapter_beside_such_shards_is_taken(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "checkpoint-5")
    (source / "global_step5").mkdir()
    (source / "global_step5" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(b"shard")
    assert Registry(home).add(source).manifest["checkpoint"]["reader"] == "transformers"


def test_a_damaged_copy_is_repaired_from_the_shards(saved: Callable[..., Path], home: Path) -> None:
    registry = Registry(home)
    digest = registry.add(saved().parent, run="rl").digest
    flip(Path(registry.path(digest.hex)) / WEIGHTS)
    found = registry.verify()
    assert [each.digest for each in found.findings] == [digest]
    assert [each for each, _ in registry.repair(found).done] == [digest]
    assert registry.verify().findings == ()


def test_peft_loads_what_was_joined_as_what_was_split(saved: Callable[..., Path], home: Path, tmp_path: Path) -> None:
    """Into modules of the same names and sizes; what it adds to their weights is s*B@A of the tensors before."""
    registry = Registry(home)
    digest = registry.add(saved(placement="Shard(1)").parent, base="org/base").digest
    got = registry.get(digest.hex, tmp_path / "got")
    base = torch.nn.Module()
    for module in MODULES:
        place = base
        *parents, name = module.split(".")
        for parent in parents:
            if not hasattr(place, parent):
                place.add_module(parent, torch.nn.Module())
            place = place.get_submodule(parent)
        place.add_module(name, torch.nn.Linear(16, 24, bias=False))
    model = inject_adapter_in_model(PeftConfig.from_pretrained(got), base)
    stored = {key.removeprefix(PREFIX): tensor for key, tensor in load_file(Path(got) / WEIGHTS).items()}
    assert set_peft_model_state_dict(model, stored).unexpected_keys == []
    full = full_state(3)
    for module in MODULES:
        a, b = (full[f"{PREFIX}{module}.lora_{part}.default.weight"] for part in "AB")
        assert torch.equal(model.get_submodule(module).get_delta_weight("default"), (b @ a) * (8 / 3))
