"""The pickle: tensors and plain containers come out, nothing that it names runs, and nothing of ours is altered."""

from __future__ import annotations

import argparse
import os
import pickle
import struct
import subprocess
import sys
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch

from registry.checkpoints import pickled
from registry.checkpoints.pickled import Inert, StorageRef, TensorRef, load
from registry.core.dtypes import BY_NAME, DType
from registry.core.errors import MalformedFile, RegistryError, UnsafePickle

FLOAT32 = BY_NAME["float32"]
Read = Callable[..., object]


@pytest.fixture
def read_back(save: Callable[..., Path], unpack: Callable[[Path], dict[str, bytes]]) -> Read:
    """Save a value with torch and load its pickle here."""

    def read_back(value: object, **options: object) -> object:
        return load(unpack(save(value, **options))["data.pkl"], "file")

    return read_back


def proto(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def named(module: str, name: str) -> bytes:
    return b"c" + f"{module}\n{name}\n".encode()


def storage(kind: str = "FloatStorage", key: str = "0", numel: bytes = b"K\x0c") -> bytes:
    return b"(" + text("storage") + named("torch", kind) + text(key) + text("cpu") + numel + b"tQ"


def tensor(
    *, data: bytes = b"", offset: bytes = b"K\0", shape: bytes = b"K\x03\x85", stride: bytes = b"K\x01\x85"
) -> bytes:
    arguments = (data or storage()) + offset + shape + stride + b"\x89}"
    return named("torch._utils", "_rebuild_tensor_v2") + b"(" + arguments + b"tR"


# What torch writes


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_back_as_they_are(read_back: Read, protocol: int) -> None:
    value = {"n": None, "b": [True, False], "i": (1, -5, 2**80), "f": 1.5, "s": "\u00e9", 3: {"x": ()}, ("a", 1): [[]]}
    assert read_back(value, pickle_protocol=protocol) == value


def test_a_tensor_is_described(read_back: Read) -> None:
    assert read_back(torch.zeros(5, 6)[1:, 2::2].T) == TensorRef(FLOAT32, "0", 120, 8, (2, 4), (2, 6))


def test_two_names_of_one_view_are_equal(read_back: Read) -> None:
    weight = torch.zeros(2, 2)
    first, second, other = read_back([weight, weight.view(2, 2), weight[0]])
    assert first == second != other
    assert len({first, second, other}) == 2


def test_parameters_are_their_tensors(read_back: Read) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    tagged = torch.nn.Parameter(torch.zeros(3))
    tagged.note = "kept by torch"
    attributed = torch.zeros(3)
    attributed.note = "kept by torch"
    refs = read_back([parameter, tagged, attributed])
    assert [type(ref) for ref in refs] == [TensorRef] * 3


def test_a_state_dict_is_a_dict_and_drops_its_attributes(read_back: Read) -> None:
    contents = read_back(torch.nn.Linear(3, 2).state_dict())
    assert isinstance(contents, dict)
    assert list(contents) == ["weight", "bias"]
    assert not hasattr(contents, "_metadata")


def test_an_optimizer_s_state_is_walked(read_back: Read) -> None:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    contents = read_back(optimizer.state_dict())
    assert contents["state"][0]["exp_avg"].shape == (2, 3)
    assert contents["param_groups"][0]["lr"] == 0.001


def test_a_size_is_a_tuple(read_back: Read) -> None:
    assert read_back(torch.Size([2, 3])) == (2, 3)


def test_a_bare_storage_is_described(read_back: Read) -> None:
    assert read_back(torch.zeros(3).untyped_storage()) == StorageRef(BY_NAME["uint8"], "0", 12)


def test_lazy_conjugation_and_negation_are_remembered(read_back: Read) -> None:
    conjugate = read_back(torch.zeros(2, dtype=torch.complex64).conj())
    negative = read_back(torch.zeros(2, dtype=torch.complex64).conj().imag)
    assert (conjugate.conj, conjugate.neg) == (True, False)
    assert (negative.conj, negative.neg) == (False, True)


class Custom:
    def __init__(self) -> None:
        self.value = torch.zeros(2)


class Items(dict[str, object]):
    pass


UNKNOWN: dict[str, Callable[[], object]] = {
    "torch.float32": lambda: torch.float32,
    "torch.device": lambda: torch.device("cpu"),
    "multiarray._reconstruct": lambda: np.arange(3),
    "multiarray.scalar": lambda: np.float32(1),
    "pathlib.PurePosixPath": lambda: PurePosixPath("a/b"),
    "argparse.Namespace": lambda: argparse.Namespace(a=torch.zeros(1)),
    "collections.Counter": lambda: Counter("aab"),
    "test_pickled.Custom": Custom,
    ".set": lambda: {1, 2},
    ".bytearray": lambda: bytearray(b"x"),
    ".complex": lambda: 1 + 2j,
    "torch._utils._rebuild_sparse_tensor": lambda: torch.eye(2).to_sparse(),
    "torch._utils._rebuild_meta_tensor_no_storage": lambda: torch.zeros(2, device="meta"),
    "torch._utils._rebuild_qtensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.filterwarnings("ignore")
def test_an_unknown_global_is_an_inert_placeholder_that_names_it(read_back: Read, name: str) -> None:
    found = read_back(UNKNOWN[name]())
    assert isinstance(found, Inert) or issubclass(found, Inert)
    assert found.global_name.endswith(name)


def test_a_placeholder_s_repr_names_the_global_and_shows_no_contents(read_back: Read) -> None:
    assert repr(read_back(Counter("aab"))) == "<inert collections.Counter>"


@pytest.mark.parametrize("mapping", [defaultdict(list), Items(), OrderedDict()])
def test_items_of_any_mapping_can_be_read(read_back: Read, mapping: dict[str, object]) -> None:
    mapping.update(a=torch.zeros(2), b=1)
    found = read_back(mapping)
    items = found.items_ if isinstance(found, Inert) else found
    assert items["a"].shape == (2,)
    assert items["b"] == 1


def test_an_object_with_a_large_state_may_be_a_key(read_back: Read) -> None:
    key = Custom()
    key.value = [list(range(100)) for _ in range(100)]
    (found,) = read_back({key: 1})
    assert isinstance(found, Inert)


def test_a_mark_that_is_taken_back_is_no_fault() -> None:
    assert load(proto(b"(0N"), "file") is None


def test_a_tensor_subclass_is_inert_because_its_bytes_could_mean_anything(read_back: Read) -> None:
    class Scaled(torch.Tensor):
        pass

    globals()["Scaled"] = Scaled
    Scaled.__qualname__ = "Scaled"
    found = read_back(torch.zeros(2).as_subclass(Scaled))
    assert isinstance(found, Inert)
    assert found.global_name.endswith("Scaled")


def test_a_dtype_this_reader_does_not_know_is_inert() -> None:
    arguments = storage("UntypedStorage") + b"K\0K\x03\x85K\x01\x85\x89}" + named("torch", "uint3")
    found = load(proto(named("torch._utils", "_rebuild_tensor_v3") + b"(" + arguments + b"tR"), "file")
    assert isinstance(found, Inert)
    assert found.global_name == "torch.uint3"


# Nothing runs


class Call:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.reduced


def hostile(marker: Path) -> dict[str, bytes]:
    command, code = f"touch {marker}", f"open({str(marker)!r}, 'w')"
    run = text(command) + b"\x85"
    system = named("os", "system")
    return {
        "reduce": proto(system + run + b"R"),
        "posix": proto(named("posix", "system") + run + b"R"),
        "pickled": pickle.dumps({"lora": [Call(os.system, command)]}, 4),
        "eval": pickle.dumps(Call(eval, code), 2),
        "exec": pickle.dumps(Call(exec, code), 5),
        "popen": pickle.dumps(Call(subprocess.Popen, ["touch", str(marker)]), 2),
        "newobj": proto(named("subprocess", "Popen") + run + b"\x81"),
        "newobj_ex": b"\x80\x04" + named("subprocess", "Popen") + run + b"}\x92.",
        "inst": proto(b"(" + text(command) + b"ios\nsystem\n"),
        "obj": proto(b"(" + system + text(command) + b"o"),
        "stack_global": b"\x80\x04" + text("os") + text("system") + b"\x93" + run + b"R.",
        "dotted": b"\x80\x04" + text("registry.checkpoints.source") + text("os.system") + b"\x93" + run + b"R.",
        "build": proto(named("argparse", "Namespace") + b")\x81}" + text("a") + system + run + b"Rsb"),
        "setstate": proto(named("functools", "partial") + system + b"\x85R(" + system + run + b"}}tb)R"),
        "append": proto(system + b")\x81" + text(command) + b"a"),
        "getattr": proto(named("builtins", "getattr") + named("os", "path") + text("os") + b"\x86R" + run + b"R"),
        "rebuild": proto(
            named("torch._tensor", "_rebuild_from_type_v2") + b"(" + system + named("torch", "Tensor") + run + b"NtR"
        ),
        "parameter": proto(named("torch._utils", "_rebuild_parameter") + b"(" + system + run + b"R\x88}tR"),
        "default": proto(named("collections", "defaultdict") + system + b"\x85R" + text(command) + b"Ns"),
    }


@pytest.mark.parametrize("name", hostile(Path()))
def test_no_payload_runs(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "ran"
    with suppress(MalformedFile):
        load(hostile(marker)[name], "file")
    time.sleep(0.02)
    assert not marker.exists()


def test_no_global_is_even_imported() -> None:
    code = LOAD + "print('antigravity' in sys.modules)"
    body = proto(named("antigravity", "fly"))
    done = subprocess.run([sys.executable, "-c", code], input=body, capture_output=True, check=True)
    assert done.stdout == b"loaded\nFalse\n"


def snapshot() -> object:
    functions = pickled.KNOWN.values()
    return (
        [(dict(vars(function)), function._call.__defaults__, dict(vars(function._call))) for function in functions],
        [(dtype.name, dtype.itemsize, dtype.swap_width) for dtype in BY_NAME.values()],
        [dict(vars(kind)) for kind in (Inert, TensorRef, StorageRef, DType, pickled.Function)],
    )


@pytest.mark.parametrize(
    "target",
    [
        tensor(),
        storage(),
        named("torch", "float32"),
        named("torch.nn.parameter", "Parameter"),
        *(named(*name.rsplit(".", 1)) for name in pickled.KNOWN),
        named("collections", "OrderedDict") + b")R",
    ],
)
@pytest.mark.parametrize(
    "state",
    [
        b"(" + text("float64") + text("F64") + b"K\x01K\x01t",
        b"}" + text("dtype") + text("evil") + b"s",
        b"}" + text("items") + b"Ns",
        b"N}" + text("__defaults__") + b"K\x01\x85s\x86",
        b"N}" + text("items") + b"Ns\x86",
    ],
)
def test_a_state_alters_nothing(target: bytes, state: bytes) -> None:
    before = snapshot()
    clean = load(proto(tensor()), "file")
    try:
        built = load(proto(target + state + b"b"), "file")
    except MalformedFile:
        pass
    else:
        assert built == {}
        assert not list(built.items())
    assert snapshot() == before
    assert load(proto(tensor()), "file") == clean


def test_a_shape_cannot_be_changed_after_it_was_checked() -> None:
    shape = b"]q\x01K\x03a"
    with pytest.raises(MalformedFile, match="tuples of sizes"):
        load(proto(tensor(shape=shape) + b"0h\x01K\x7fa"), "file")


# Damage


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (tensor(offset=b"K\x0a"), "beyond its storage"),
        (tensor(shape=b"K\x0d\x85"), "beyond its storage"),
        (tensor(stride=b"K\x06\x85"), "beyond its storage"),
        (tensor(shape=b"K\x03K\x03\x86"), "equally long"),
        (tensor(shape=b"J\xff\xff\xff\xff\x85"), "tuples of sizes"),
        (tensor(shape=b"\x88\x85"), "tuples of sizes"),
        (tensor(shape=b"G?\xf0\0\0\0\0\0\0\x85"), "tuples of sizes"),
        (tensor(shape=b"\x8a\x09" + b"\xff" * 8 + b"\0\x85"), "tuples of sizes"),
        (tensor(shape=b"(" + b"K\x01" * 65 + b"t", stride=b"(" + b"K\x01" * 65 + b"t"), "tuples of sizes"),
        (tensor(offset=b"J\xff\xff\xff\xff"), "no place"),
        (tensor(offset=b"\x89"), "no place"),
        (tensor(data=b"N"), "no storage"),
        (named("torch._utils", "_rebuild_tensor_v2") + b")R", "TypeError"),
        (named("torch._utils", "_rebuild_parameter") + b"NNN\x87R", "no tensor"),
        (named("torch._tensor", "_rebuild_from_type_v2") + b"(NNNNtR", "type"),
        (named("torch._utils", "_rebuild_tensor_v3") + b"(" + storage() + b"K\0))\x89}NtR", "dtype"),
        (named("torch", "Size") + b"]\x85R", "torch.Size"),
        (named("collections", "OrderedDict") + b"]\x85R", "TypeError"),
        (storage(key="../../etc/passwd"), "key or size"),
        (storage(key="9" * 21), "key or size"),
        (storage(key="\u0661"), "key or size"),
        (storage(numel=b"\x88"), "key or size"),
        (storage(numel=b"J\xff\xff\xff\xff"), "key or size"),
        (storage(numel=text("12")), "persistent id"),
        (b"NQ", "persistent id"),
        (b")Q", "persistent id"),
        (b"}]Ns", "TypeError"),
        (b"N}" + text("a") + b"Nsb", "AttributeError"),
        (b"NNR", "valid"),
        (b"X\x02\0\0\0\xff\xfe", "UnicodeDecodeError"),
    ],
)
def test_what_cannot_be_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(MalformedFile, match=rf"file: data\.pkl: .*({problem})"):
        load(proto(body), "file")


def test_a_view_that_just_fits_is_accepted_and_an_empty_one_takes_nothing() -> None:
    assert load(proto(tensor(offset=b"K\x09")), "file") == TensorRef(FLOAT32, "0", 48, 9, (3,), (1,))
    assert load(proto(tensor(offset=b"K\x63", shape=b"K\0\x85")), "file").shape == (0,)


def test_a_pickle_that_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MAX_PICKLE", 10)
    with pytest.raises(UnsafePickle, match="too large"):
        load(b"\x80\x02" + b"N0" * 10, "file")


def test_globals_are_counted() -> None:
    names = b"".join(named("m", str(number)) + b"0" for number in range(pickled.MAX_GLOBALS))
    assert load(proto(names * 2 + b"N"), "file") is None
    with pytest.raises(MalformedFile, match="more than 4096 globals"):
        load(proto(names + named("m", "one more")), "file")


def test_a_name_that_is_not_printable_is_escaped() -> None:
    body = b"\x80\x04X\x03\0\0\0\xed\xa0\x80" + text("\0\n") + b"\x93."
    assert load(body, "file").global_name == "\\ud800.\\x00\\n"


REBUILD, PLAIN = named("torch._tensor", "_rebuild_from_type_v2"), named("torch", "Tensor")
DEEP = {
    "lists": b"](" * 300_000 + b"e" * 300_000,
    "tuples": b")" + b"\x85" * 300_000,
    "items": named("a", "b") + b"q\0)R" + b"Nh\0)R" * 200_000 + b"s" * 200_000,
    "dicts": b"}N" * 200_000 + b"N" + b"s" * 200_000,
    "parameters": named("torch._utils", "_rebuild_parameter") + b"q\0" + b"h\0" * 1000 + tensor() + b"NN\x87R" * 1001,
    "rebuilds": PLAIN + b"q\2" + b"0" + REBUILD + b"q\1" + b"(h\1h\2" * 100_000 + b")" + b"Nt" * 99_999 + b"NtR",
    "keyed": b"}" + b")" + b"\x85" * 300_000 + b"Ns",
}

LOAD = """
import sys
sys.path.insert(0, "")
from registry.checkpoints.pickled import load
from registry.core.errors import RegistryError
try:
    value = load(sys.stdin.buffer.read(), "file")
    del value
    print("loaded")
except RegistryError as error:
    print("refused", str(error)[:200])
"""


@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting_neither_crashes_nor_recurses(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOAD], input=proto(DEEP[name]), capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith((b"loaded", b"refused file: data.pkl"))
    assert done.stderr == b""


@pytest.mark.parametrize("double", [b"q\0h\0\x86", b"q\0]q\0h\0\x86", b"q\0(h\0h\0l", b"q\0}q\x01NNsh\0\x86"])
def test_references_that_double_again_and_again_take_no_time(double: bytes) -> None:
    start = time.monotonic()
    try:
        load(proto(b")" + double * 100), "file")
    except RegistryError as error:
        str(error)
    assert time.monotonic() - start < 1


def test_a_memo_index_or_length_allocates_nothing() -> None:
    bombs = [b"N" + b"r\xff\xff\xff\x7f", b"\x8e" + struct.pack("<Q", 1 << 33), b"\x96" + struct.pack("<Q", 1 << 33)]
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
    for bomb in bombs:
        done = subprocess.run([sys.executable, "-c", limit + LOAD], input=proto(bomb), capture_output=True, check=True)
        assert b"is refused" in done.stdout
