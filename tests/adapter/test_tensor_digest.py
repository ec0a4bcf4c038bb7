"""The tensor digest identifies the tensors alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import torch

from registry.adapter import tensor_digest
from tests.support.runs import MODULES, contents, lora_state
from tests.support.values import lora_of, raw, read

NAME = f"{MODULES[0]}.lora_A.weight"


def digest(state: dict[str, torch.Tensor], **settings: object) -> str:
    return tensor_digest(lora_of(state, **settings)).hex


def test_it_is_the_sha256_of_the_documented_list() -> None:
    state = lora_state()
    rows = sorted(
        [
            name.rpartition(".lora_")[0],
            name.rpartition(".lora_")[2][0],
            "F32",
            list(value.shape),
            hashlib.sha256(raw(value)).hexdigest(),
        ]
        for name, value in state.items()
    )
    assert digest(state) == hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def test_order_prefix_container_strides_and_settings_make_no_difference(tmp_path: Path) -> None:
    state = lora_state()
    expected = digest(state)
    laid_out = {name: value.T.contiguous().T for name, value in reversed(state.items())}
    prefixed = {f"_orig_mod.base_model.model.{name}": value for name, value in laid_out.items()}
    assert digest(laid_out, alpha=99, use_rslora=True) == expected
    lora = lora_of(state)
    assert tensor_digest(replace(lora, pairs=lora.pairs[::-1])).hex == expected
    assert tensor_digest(read(tmp_path / "one", contents(prefixed, use_rslora=True)).lora).hex == expected
    assert tensor_digest(read(tmp_path / "two", {"lora": {"alpha": 8}, "model": state}).lora).hex == expected


def test_any_difference_of_the_tensors_shows() -> None:
    state = lora_state()
    flipped = state[NAME].clone()
    flipped.view(torch.int32)[3, 15] ^= 1
    square = lora_state(modules=("m",))
    square["m.lora_A.weight"], square["m.lora_B.weight"] = torch.eye(4), torch.ones(4, 4)
    exchanged = {"m.lora_A.weight": square["m.lora_B.weight"], "m.lora_B.weight": square["m.lora_A.weight"]}
    renamed = {name.replace(MODULES[0], "other"): value for name, value in state.items()}
    fewer = {name: value for name, value in state.items() if MODULES[0] not in name}
    bits_as_another_type = {**state, NAME: state[NAME].view(torch.bfloat16)[:, :16]}
    same_bytes_as = {**state, NAME: state[NAME].reshape(8, 8)}
    same_bits_as_f64 = {**state, NAME: state[NAME].view(torch.float64)}
    variants = [state, {**state, NAME: flipped}, square, exchanged, renamed, fewer, bits_as_another_type]
    variants += [same_bytes_as, same_bits_as_f64]
    assert len({digest(variant) for variant in variants}) == len(variants)
