"""adapter_model.safetensors: the same LoRA gives the same bytes anywhere, as the stock library lays them out."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapter import adapter_config, encode
from registry.core.model import Checkpoint, Lora
from tests.support.runs import MODULES, contents, lora_state
from tests.support.values import file_of, lora_of, raw, read

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_DIGEST = "6b5de4a2f3a1f112779a886a2ec95e83fe593d3f50c419648bfe2ff742a9479e"
PREFIX = "base_model.model."
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SETTINGS: dict[str, dict[str, Any]] = {
    "the same": {},
    "alpha": {"alpha": 16},
    "a fraction": {"alpha": 8.5},
    "r": {"r": 8, "rank_pattern": (("q_proj", 4), ("down_proj", 4))},
    "rslora": {"use_rslora": True},
    "alpha_pattern": {"alpha_pattern": (("q_proj", 4),)},
    "another alpha_pattern": {"alpha_pattern": (("q_proj", 5),)},
    "rank_pattern": {"rank_pattern": (("q_proj", 4),)},
    "fan_in_fan_out": {"fan_in_fan_out": True},
}


def golden_lora() -> Lora:
    """Fixed bits, two dtypes, a name that is not ASCII, and every setting."""
    state = {
        "model.layers.1.q_proj.lora_A.weight": torch.arange(12).reshape(2, 6) / 64,
        "model.layers.1.q_proj.lora_B.weight": (torch.arange(6).reshape(3, 2) - 4).to(torch.bfloat16),
        "model.layers.0.é.lora_A.weight": torch.arange(8, dtype=torch.float64).reshape(2, 4).T.contiguous().T,
        "model.layers.0.é.lora_B.weight": torch.arange(6).reshape(3, 2) / 3,
    }
    patterns = {"rank_pattern": (("q_proj", 2),), "alpha_pattern": (("é", 3.5),)}
    return lora_of(state, r=2, alpha=8, use_rslora=True, fan_in_fan_out=True, **patterns)


def parts(file: bytes) -> tuple[dict[str, Any], bytes]:
    """The header, in its order, and the data section."""
    length = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def test_the_canonical_bytes_are_pinned() -> None:
    file = file_of(golden_lora())
    header = file[8 : 8 + int.from_bytes(file[:8], "little")]
    assert header == (GOLDEN / "header.txt").read_bytes()
    assert hashlib.sha256(file).hexdigest() == GOLDEN_DIGEST


def test_five_processes_with_other_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    patterns = {"rank_pattern": {"q_proj": 4, "down_proj": 4}, "alpha_pattern": {"q_proj": 3, "down_proj": 5}}
    checkpoint = read(tmp_path / "run", contents(lora_state(), **patterns))
    program = (
        "import hashlib, sys\n"
        "from registry.adapter import adapter_config, encode\n"
        "from registry.checkpoints import read_checkpoint\n"
        "read = read_checkpoint(sys.argv[1])\n"
        "print(hashlib.sha256(b''.join(encode(read.lora).chunks())).hexdigest())\n"
        "print(hashlib.sha256(adapter_config(read.lora, read.provenance)).hexdigest())\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", program, checkpoint.path],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for seed in range(5)
    ]
    files = (file_of(checkpoint.lora), adapter_config(checkpoint.lora, checkpoint.provenance))
    assert printed == [[hashlib.sha256(file).hexdigest() for file in files]] * 5


def test_the_stock_library_reads_it_back_bit_for_bit(tmp_path: Path) -> None:
    state = lora_state()
    state[f"{MODULES[0]}.lora_A.weight"] = torch.tensor([[float("nan"), -0.0]]).expand(4, 2)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(file_of(lora_of(state)))
    by_torch = safetensors.torch.load_file(path)
    by_numpy = safetensors.numpy.load_file(path)
    assert by_torch.keys() == by_numpy.keys() == {f"{PREFIX}{name}" for name in state}
    for name, tensor in state.items():
        assert by_torch[f"{PREFIX}{name}"].shape == tensor.shape
        assert by_torch[f"{PREFIX}{name}"].dtype == tensor.dtype
        assert raw(by_torch[f"{PREFIX}{name}"]) == np.ascontiguousarray(by_numpy[f"{PREFIX}{name}"]).tobytes()
        assert raw(by_torch[f"{PREFIX}{name}"]) == raw(tensor)


NAMES = st.text(st.sampled_from('ab.0é_"\\'), min_size=1, max_size=4)


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(FLOATS), st.sampled_from(FLOATS)), min_size=1, max_size=6))
def test_tensors_lie_as_the_stock_writer_lays_them(modules: dict[str, tuple[torch.dtype, torch.dtype]]) -> None:
    state = {}
    for number, (module, (a, b)) in enumerate(modules.items()):
        state[f"{module}.lora_A.weight"] = torch.full((1, 3), number).to(a)
        state[f"{module}.lora_B.weight"] = torch.full((2, 1), -number).to(b)
    stock = safetensors.torch.save({f"{PREFIX}{name}": tensor for name, tensor in state.items()})
    stock_header, stock_data = parts(stock)
    header, data = parts(file_of(lora_of(state, r=1)))
    del header["__metadata__"]
    assert list(header.items()) == list(stock_header.items())
    assert data == stock_data


@pytest.mark.parametrize("module", ["m" * length for length in range(1, 9)])
def test_the_data_section_starts_on_a_multiple_of_eight_and_the_file_has_no_slack(module: str) -> None:
    lora = lora_of(lora_state(modules=(module,)))
    file = file_of(lora)
    length = int.from_bytes(file[:8], "little")
    assert length % 8 == 0
    assert file[8 : 8 + length].rstrip(b" ")[-1:] == b"}"
    assert len(file) == encode(lora).size == 8 + length + lora.nbytes


def test_the_metadata_says_what_decides_the_function_and_nothing_else(tmp_path: Path) -> None:
    checkpoint = read(tmp_path / "a-secret-path", contents(lora_state(), alpha=8.5, use_rslora=True), config={})
    metadata = parts(file_of(checkpoint.lora))[0]["__metadata__"]
    assert metadata == {"format": "pt", "lora": '{"lora_alpha":8.5,"r":4,"use_rslora":true}'}
    assert list(metadata) == sorted(metadata)


def test_each_setting_that_decides_the_function_makes_another_adapter() -> None:
    files = {name: file_of(lora_of(lora_state(), **settings)) for name, settings in SETTINGS.items()}
    assert len(set(files.values())) == len(SETTINGS)
    assert len({parts(file)[1] for file in files.values()}) == 1


def test_path_run_base_iteration_manifest_and_optimizer_make_no_difference(tmp_path: Path) -> None:
    one = read(tmp_path / "one", contents(lora_state()), iteration=3)
    config = {"run_id": "other", "model": {"base": "elsewhere"}}
    saved: dict[str, Any] = contents({f"module.{name}": value for name, value in lora_state().items()}, iteration=4)
    other: Checkpoint = read(
        tmp_path / "other", {**saved, "optimizer": None, "step": 1}, iteration=4, manifest=False, config=config
    )
    assert (one.digest, one.provenance) != (other.digest, other.provenance)
    assert file_of(one.lora) == file_of(other.lora)
