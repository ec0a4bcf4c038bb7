"""Public reports about bytes and reading, as PEFT directories.

The same of aorlta's own checkpoints: transformers#27613, pytorch#40157, transformers#27923, transformers#34631,
VoxCPM#267, dddd_trainer#36 in test_aorlta; axolotl#3294 in test_lora_keys. safetensors#401 for other files than
adapters: tests/served/test_weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import Registry
from registry.core.errors import MalformedFile, OutputExists, Refused, UnsupportedLora
from registry.core.layout import CONFIG, MANIFEST, PICKLED, WEIGHTS
from tests.support.merging import factors
from tests.support.taking import PREFIX, Q, V, kept, pickled, plain, refused, warnings_of
from tests.support.trees import snapshot
from tests.support.values import raw

A, B = f"{PREFIX}{Q}.lora_A.weight", f"{PREFIX}{Q}.lora_B.weight"


def packed(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def entry(shape: list[int], start: int, stop: int, dtype: str = "BF16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


SOUND = {A: entry([4, 16], 0, 128), B: entry([24, 4], 128, 320)}
DATA = bytes(range(1, 161)) * 2


def unsorted(metadata: Any = None, **tensors: Any) -> bytes:
    header = {B: SOUND[B], "__metadata__": metadata or {"z": "1", "a": "2"}, A: SOUND[A], **tensors}
    return json.dumps(header, indent=1).encode() + b"   "


def with_file(directory: Path, data: bytes) -> Path:
    plain(directory)
    (directory / WEIGHTS).write_bytes(data)
    return directory


def test_peft_2421_a_file_that_the_stock_writer_would_lay_out_otherwise_keeps_its_bytes(
    home: Path, tmp_path: Path
) -> None:
    data = packed(unsorted(), DATA)
    source = with_file(tmp_path / "a", data)
    assert kept(home, source).digest.hex == hashlib.sha256(data).hexdigest()


def test_safetensors_762_neither_get_nor_export_writes_where_the_source_is(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    added = kept(home, source)
    before = snapshot(source)
    with pytest.raises(OutputExists):
        Registry(home).get(added.digest.hex, source)
    assert snapshot(source) == before


def test_safetensors_762_what_was_got_can_be_added_again(home: Path, tmp_path: Path) -> None:
    added = kept(home, plain(tmp_path / "a"))
    Registry(home).get(added.digest.hex, tmp_path / "got")
    again = kept(home, tmp_path / "got")
    assert (again.digest, again.outcome) == (added.digest, "already present")


def test_transformers_27613_one_tensor_under_two_keys_and_a_transposed_one_are_written_whole(
    home: Path, tmp_path: Path
) -> None:
    shared = torch.randn(16, 4).T
    state = factors(Q) | factors(V)
    other = f"{PREFIX}{V}.lora_A.weight"
    state[A] = state[other] = shared
    added = Registry(home).add(pickled(tmp_path / "a", state))
    assert added.manifest["same_tensor"] == [[A, other]]
    assert files(home, added) == {key: raw(value) for key, value in state.items()}


def files(home: Path, added: Any) -> dict[str, bytes]:
    stored = Path(Registry(home).path(added.digest.hex))
    return {key: raw(value) for key, value in load_file(stored / WEIGHTS).items()}


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda: torch.randn(1000, 1000)[7:11, 100:116], id="pytorch#40157"),
        pytest.param(lambda: torch.randn(8, 64)[::2, ::4], id="steps"),
        pytest.param(lambda: torch.randn(4, 16).bfloat16(), id="bf16"),
    ],
)
def test_pytorch_40157_of_a_pickled_adapter_only_the_views_own_elements_are_stored(
    view: Callable[[], torch.Tensor], home: Path, tmp_path: Path
) -> None:
    state = factors(Q) | {A: view()}
    source = pickled(tmp_path / "a", state)
    added = Registry(home).add(source)
    assert files(home, added) == {key: raw(value) for key, value in state.items()}
    assert added.manifest["derived"] == {
        "from": hashlib.sha256((source / PICKLED).read_bytes()).hexdigest(),
        "changes": [f"written anew from {PICKLED}"],
    }
    assert added.manifest["adapter"][WEIGHTS]["bytes"] < 10_000


def test_a_pickled_adapter_and_its_safetensors_have_one_tensor_digest(home: Path, tmp_path: Path) -> None:
    state = factors(Q)
    one, two = Registry(home).add(pickled(tmp_path / "a", state)), kept(home, plain(tmp_path / "b", state=state))
    assert one.manifest["adapter"]["tensor_digest"] == two.manifest["adapter"]["tensor_digest"]
    assert one.digest != two.digest


@pytest.mark.parametrize("name", [WEIGHTS, PICKLED])
def test_transformers_27923_a_git_lfs_pointer_is_called_one(name: str, home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    (source / WEIGHTS).unlink()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 99\n"
    (source / name).write_text(pointer)
    refused(home, source, "Git LFS pointer", MalformedFile)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (packed(json.dumps(SOUND).encode().replace(b"{", b'{"x": 1, "x": 2, ', 1), DATA), "'x' appears twice"),
        (
            packed(json.dumps(SOUND).encode().replace(b"{", b'{"__metadata__": {}, "__metadata__": {}, ', 1), DATA),
            "'__metadata__' appears twice",
        ),
        (packed(json.dumps(SOUND | {B: entry([24, 4], 64, 256)}).encode(), DATA[:256]), "overlap"),
        (packed(json.dumps(SOUND | {B: entry([24, 4], 136, 328)}).encode(), DATA + b"12345678"), "belong to no tensor"),
        (packed(json.dumps(SOUND).encode(), DATA + b"x"), "belong to no tensor"),
        (packed(json.dumps(SOUND).encode(), DATA[:-1]), "truncated"),
        (packed(json.dumps(SOUND).encode(), DATA)[:200], "truncated"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "truncated, or not a safetensors file"),
        (b"", "truncated, or not a safetensors file"),
        (b"\x00" * 7, "truncated, or not a safetensors file"),
        (packed(b"[" * 100_000, b""), "nested too deeply"),
        (packed(json.dumps(SOUND | {B: entry([24, 5], 128, 320)}).encode(), DATA), "shape and offsets disagree"),
        (packed(json.dumps(SOUND | {B: entry([24, 4], 128, 320, "X9")}).encode(), DATA), "unknown element type"),
        (packed(json.dumps(SOUND | {"__metadata__": {"a": 1}}).encode(), DATA), "not a map from text to text"),
    ],
)
def test_safetensors_401_a_damaged_file_is_refused_with_the_cause(
    data: bytes, says: str, home: Path, tmp_path: Path
) -> None:
    refused(home, with_file(tmp_path / "a", data), says, MalformedFile)


def test_safetensors_401_a_huge_header_is_refused_before_the_file_is_read(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    with (source / WEIGHTS).open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)
    with pytest.raises(MalformedFile, match="header is too large"):
        Registry(home).add(source)


class Payload:
    """Would make a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_voxcpm_267_no_code_in_a_pickled_adapter_runs(home: Path, tmp_path: Path) -> None:
    trap = tmp_path / "touched"
    source = pickled(tmp_path / "a", factors(Q) | {"evil": Payload(trap)})
    error = refused(home, source, "no tensor", UnsupportedLora)
    assert error.key == "evil"
    assert not trap.exists()
    torch.load(source / PICKLED, weights_only=False)
    assert trap.exists()  # the trap works


@pytest.mark.parametrize("saved", [[1], {"a": {"b": 1}}, {3: torch.ones(2)}, "x", {"state": {A: torch.ones(4, 16)}}])
def test_a_pickled_adapter_that_is_no_map_of_tensors_is_refused(saved: Any, home: Path, tmp_path: Path) -> None:
    refused(home, pickled(tmp_path / "a", saved), "tensor", Refused)


def test_dddd_trainer_36_a_pickled_adapter_cut_short_is_called_truncated(home: Path, tmp_path: Path) -> None:
    source = pickled(tmp_path / "a", factors(Q))
    data = (source / PICKLED).read_bytes()
    (source / PICKLED).write_bytes(data[: len(data) * 6 // 10])
    refused(home, source, "truncated", MalformedFile)


def test_the_safetensors_are_taken_where_both_are(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    torch.save(factors(V), source / PICKLED)
    assert warnings_of(kept(home, source)) == [f"{PICKLED} beside it was left out"]


def test_one_changed_bit_anywhere_is_another_adapter_or_refused(home: Path, tmp_path: Path) -> None:
    data = packed(json.dumps(SOUND).encode(), DATA)
    source, seen = with_file(tmp_path / "a", data), set()
    for place in range(0, len(data), len(data) // 40):
        (source / WEIGHTS).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            seen.add(Registry(home).add(source, allow_nonfinite=True).digest)
        except Refused:
            continue
    assert len(seen) > 10
    assert hashlib.sha256(data).hexdigest() not in {digest.hex for digest in seen}


def test_a_manifest_of_an_earlier_export_is_believed_of_the_same_bytes_only(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a")
    Registry(home).get(kept(home, source, run="first").digest.hex, tmp_path / "got")
    again = Registry(home / "second").add(tmp_path / "got")
    assert again.manifest["run"]["id"] == "first"
    (tmp_path / "got" / WEIGHTS).write_bytes((plain(tmp_path / "b") / WEIGHTS).read_bytes())
    other = Registry(home / "second").add(tmp_path / "got")
    assert other.manifest["run"]["id"] is None
    assert f"{MANIFEST} beside it is of other bytes, and was left out" in warnings_of(other)


def test_a_config_over_the_limit_is_refused(home: Path, tmp_path: Path) -> None:
    source = plain(tmp_path / "a", extra="x" * (5 << 20))
    assert (source / CONFIG).stat().st_size > 4 << 20
    refused(home, source, "larger than any such file should be")
