"""Public reports of incomplete or damaged tensors, as PEFT directories.

The same of aorlta's own checkpoints: peft#3251, peft#3584, trl#4416 in test_lora_keys; peft#1402, ainode#186 in
test_aorlta; ktransformers#2147 in test_manifests.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from registry.core.errors import ManifestMismatch, UnsupportedLora
from registry.core.layout import WEIGHTS
from tests.support.merging import edit_config, factors
from tests.support.taking import PREFIX, Q, V, kept, plain, refused, resave, warnings_of

A, B = f"{PREFIX}{Q}.lora_A.weight", f"{PREFIX}{Q}.lora_B.weight"


@pytest.mark.parametrize(
    ("key", "shape", "says"),
    [
        (B, (24, 0), "empty tensor: a sharded save"),
        (B, (0,), "empty tensor: a sharded save"),
        (A, (0, 16), "empty tensor: a sharded save"),
        (A, (64,), "flat factor; was it saved from one shard"),
        (B, (96,), "flat factor; was it saved from one shard"),
        (A, (), "flat factor"),
    ],
)
def test_peft_3251_empty_and_flat_factors_are_refused(
    key: str, shape: tuple[int, ...], says: str, home: Path, tmp_path: Path
) -> None:
    refused(home, plain(tmp_path / "a", state={key: torch.ones(shape)}), says, UnsupportedLora)


def test_peft_2450_any_empty_tensor_is_refused_and_named(home: Path, tmp_path: Path) -> None:
    key = f"{PREFIX}lm_head.weight"
    directory = plain(tmp_path / "a", state={key: torch.empty(0)}, modules_to_save=["lm_head"])
    assert refused(home, directory, "empty tensor").key == key
    whole = plain(tmp_path / "b", state={key: torch.ones(8, 4)}, modules_to_save=["lm_head"])
    kept(home, whole)


@pytest.mark.parametrize("state", [{}, {f"{PREFIX}lm_head.weight": torch.ones(2, 2)}, {"x": torch.ones(2)}])
def test_trl_4416_a_file_without_factors_is_refused(state: dict[str, torch.Tensor], home: Path, tmp_path: Path) -> None:
    directory = resave(plain(tmp_path / "a"), state, {"format": "pt"})
    refused(home, directory, "no LoRA tensors", UnsupportedLora)


def test_peft_1402_an_adapter_that_changes_nothing_is_kept_with_a_warning(home: Path, tmp_path: Path) -> None:
    zero = {f"{PREFIX}{module}.lora_B.weight": torch.zeros(24, 4) for module in (Q, V)}
    every = kept(home, plain(tmp_path / "every", Q, V, state=zero))
    assert warnings_of(every) == ["every lora_B is zero (2 of 2): this adapter changes nothing"]
    assert every.manifest["adapter"]["zero_lora_b"] == 2
    some = kept(home, plain(tmp_path / "some", Q, V, state={B: zero[B]}))
    assert (warnings_of(some), some.manifest["adapter"]["zero_lora_b"]) == ([], 1)


def test_an_adapter_with_zero_factors_and_other_tensors_is_not_said_to_change_nothing(
    home: Path, tmp_path: Path
) -> None:
    state = {B: torch.zeros(24, 4), f"{PREFIX}model.norm.weight": torch.ones(8)}
    added = kept(home, plain(tmp_path / "a", state=state, modules_to_save=["norm"]))
    assert "every lora_B is zero (1 of 1): only its other tensors can change anything" in warnings_of(added)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_ainode_186_nonfinite_elements_are_refused_or_counted(
    value: float, dtype: torch.dtype, home: Path, tmp_path: Path
) -> None:
    state = {key: tensor.to(dtype) for key, tensor in factors(Q).items()}
    state[A][1, 3] = value
    directory = plain(tmp_path / "a", state=state)
    error = refused(home, directory, "1 elements in 1 tensors are infinite or NaN.*--allow-nonfinite")
    assert error.key == A
    added = kept(home, directory, allow_nonfinite=True)
    assert (added.manifest["adapter"]["nonfinite"], warnings_of(added)) == (1, ["1 elements are infinite or NaN"])


def test_nonfinite_elements_of_other_tensors_count_too(home: Path, tmp_path: Path) -> None:
    head = torch.ones(4, 4)
    head[0, 0] = float("nan")
    directory = plain(tmp_path / "a", state={f"{PREFIX}lm_head.weight": head})
    assert refused(home, directory, "infinite or NaN").key == f"{PREFIX}lm_head.weight"


def test_peft_3584_targets_without_tensors_are_told_with_counts(home: Path, tmp_path: Path) -> None:
    directory = plain(tmp_path / "a", Q, V, target_modules=["q_proj", "v_proj", "gate_proj"])
    assert warnings_of(kept(home, directory)) == [
        "target_modules: 'gate_proj' has no tensors (modules by target: 'q_proj' 1, 'v_proj' 1)"
    ]


@pytest.mark.parametrize(("lost", "other"), [(A, "lora_A"), (B, "lora_B")])
def test_peft_3584_half_a_pair_is_refused(lost: str, other: str, home: Path, tmp_path: Path) -> None:
    state = factors(Q) | factors(V)
    del state[lost]
    directory = resave(plain(tmp_path / "a"), state)
    assert refused(home, directory, f"one factor without the other.*also {other}").key == Q


def test_ktransformers_2147_a_manifest_that_lists_other_bytes_refuses_them(home: Path, tmp_path: Path) -> None:
    directory = plain(tmp_path / "a")
    actual = hashlib.sha256((directory / WEIGHTS).read_bytes()).hexdigest()
    listing = {"files": {WEIGHTS: {"sha256": "0" * 64}}}
    (directory / "manifest.json").write_text(json.dumps(listing))
    error = refused(home, directory, "differs from what manifest.json lists", ManifestMismatch)
    assert (str(error.found), str(error.expected)) == (f"sha256:{actual}", f"sha256:{'0' * 64}")
    (directory / "manifest.json").write_text(json.dumps({"files": {WEIGHTS: {"sha256": actual}}}))
    assert kept(home, directory).manifest["checkpoint"]["manifest"]["name"] == "manifest.json"


@pytest.mark.parametrize("text", ['{"files": {"other": {"sha256": "%s"}}}' % ("0" * 64), '"something else"', "{"])
def test_a_manifest_of_something_else_is_none_of_an_adapter(text: str, home: Path, tmp_path: Path) -> None:
    directory = plain(tmp_path / "a")
    (directory / "manifest.json").write_text(text)
    assert kept(home, directory).manifest["checkpoint"]["manifest"] is None


def test_ranks_are_held_against_the_config(home: Path, tmp_path: Path) -> None:
    directory = plain(tmp_path / "a", Q, V)
    edit_config(directory, rank_pattern={"v_proj": 2})
    assert refused(home, directory, "rank is not the stated one", UnsupportedLora).key == V
