"""Whole torch.save files: the same tensors as torch.load, from one open and one pass, and only our errors."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.checkpoints.pickled import Inert, TensorRef
from registry.checkpoints.torchfile import open_torch_file
from registry.core.digest import Digest
from registry.core.errors import ChangedWhileRead, MalformedFile, RegistryError, UnsupportedLora

DTYPES = [
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    )
]
Save = Callable[..., Path]
Unpack = Callable[[Path], dict[str, bytes]]


def bits(tensor: torch.Tensor) -> bytes:
    """A tensor's elements in row-major order."""
    whole = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()) if tensor.numel() else tensor
    return bytes(whole.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    raw = bytearray(os.urandom(size)) if dtype != torch.bool else bytearray(byte & 1 for byte in os.urandom(size))
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)


def flat(value: object) -> Iterator[object]:
    """The leaves of nested containers, in order."""
    if isinstance(value, Inert):
        value = value.items_
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)
    else:
        yield value


def read(path: Path) -> tuple[Digest, list[tuple[str, tuple[int, ...], bytes]]]:
    """The digest and every tensor: dtype, shape, bits."""
    with open_torch_file(path) as file:
        refs = [leaf for leaf in flat(file.contents) if isinstance(leaf, TensorRef)]
        digest, tensors = file.read(refs)
    read = [tensors[ref] for ref in refs]
    return digest, [(str(tensor.dtype), tensor.shape, bytes(tensor.contiguous())) for tensor in read]


def loaded(path: Path) -> list[tuple[str, tuple[int, ...], bytes]]:
    """The same, by torch."""
    leaves = flat(torch.load(path, weights_only=True))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return [(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), bits(tensor)) for tensor in tensors]


def sha256(path: Path) -> Digest:
    return Digest(hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_bit_for_bit(save: Save, dtype: torch.dtype) -> None:
    tensor = random_tensor(dtype, 3, 5)
    with open_torch_file(save(tensor)) as file:
        tensor_here = file.read([file.contents])[1][file.contents]
    assert f"torch.{tensor_here.dtype}" == str(dtype)
    assert tensor_here.shape == (3, 5)
    assert bytes(tensor_here.contiguous()) == bits(tensor.view(torch.uint8))


def test_layouts_of_one_buffer_are_read_as_torch_reads_them(save: Save) -> None:
    base = random_tensor(torch.float32, 6, 10)
    value = {
        "whole": base,
        "transposed": base.T,
        "rows": base[2:4],
        "columns": base[:, 3:9:2],
        "permuted": base.view(2, 3, 10).permute(2, 0, 1),
        "expanded": base[:1, :1].expand(4, 5),
        "scalar": base[3, 3],
        "empty": base[:0],
        "parameter": torch.nn.Parameter(base[1]),
        "windows": base.flatten().unfold(0, 4, 2),
        "alone": torch.tensor(7),
        "void": torch.zeros(0, 3),
    }
    path = save(value)
    digest, tensors = read(path)
    assert tensors == loaded(path)
    assert digest == sha256(path)


def test_a_view_keeps_its_own_bytes_and_not_its_storage_s(save: Save) -> None:
    path = save({"big": torch.zeros(1000, 1000)[500:502]})
    with open_torch_file(path) as file:
        (tensor,) = file.read([file.contents["big"]])[1].values()
    assert len(tensor.storage) == 2 * 1000 * 4
    assert len(tensor.storage.obj) < 100_000  # with what the plan was made from, and far from 4 MB


def test_equal_views_are_one_tensor(save: Save) -> None:
    weight = torch.ones(4)
    with open_torch_file(save([weight, weight])) as file:
        assert len(file.read(file.contents)[1]) == 1


def test_the_digest_is_the_file_s_whatever_is_read_of_it(save: Save) -> None:
    path = save([torch.ones(1000), torch.ones(3)])
    with open_torch_file(path) as file:
        assert file.read([])[0] == sha256(path)
        assert file.read([file.contents[1]])[0] == sha256(path)


def test_tensors_outlive_the_file(save: Save) -> None:
    path = save(torch.arange(4, dtype=torch.uint8))
    with open_torch_file(path) as file:
        tensors = file.read([file.contents])[1]
    path.unlink()
    assert [bytes(tensor.contiguous()) for tensor in tensors.values()] == [bytes(range(4))]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=str)
def test_a_big_endian_file_is_read_as_torch_reads_it(
    save: Save, unpack: Unpack, pack: Save, dtype: torch.dtype
) -> None:
    tensor = random_tensor(dtype, 4, 6)
    records = unpack(save({"w": tensor, "t": tensor.T}))
    width = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    data = records["data/0"]
    swapped = b"".join(data[at : at + width][::-1] for at in range(0, len(data), width))
    path = pack({**records, "data/0": swapped, "byteorder": b"big"})
    assert [stored for *_, stored in read(path)[1]] == [bits(tensor), bits(tensor.T)]
    assert read(path)[1] == loaded(path)


def test_a_file_without_a_byte_order_is_little_endian(save: Save, unpack: Unpack, pack: Save) -> None:
    records = unpack(save(torch.arange(4)))
    del records["byteorder"]
    path = pack(records)
    assert read(path)[1] == loaded(path)


def test_an_unknown_byte_order_is_refused(save: Save, unpack: Unpack, pack: Save) -> None:
    path = pack({**unpack(save(torch.arange(4))), "byteorder": b"middle"})
    with pytest.raises(MalformedFile, match="byteorder: unknown byte order; found b'middle'"):
        read(path)


@pytest.mark.parametrize("change", [b"", b"\0" * 15, b"\0" * 17])
def test_a_record_of_another_size_than_its_storage_is_refused(
    save: Save, unpack: Unpack, pack: Save, change: bytes
) -> None:
    path = pack({**unpack(save(torch.ones(4))), "data/0": change})
    with pytest.raises(MalformedFile, match="data/0: the record's size is not that of the storage"):
        read(path)


def test_a_missing_record_is_named(save: Save, unpack: Unpack, pack: Save) -> None:
    records = unpack(save(torch.ones(4)))
    del records["data/0"]
    with pytest.raises(MalformedFile, match="data/0: the archive has no such record"):
        read(pack(records))


def flip(path: Path, record: bytes, at: int) -> None:
    """Flip a bit of a record's data, which torch aligns to 64 bytes."""
    data = bytearray(path.read_bytes())
    header = data.find(record) - 30
    name, extra = struct.unpack_from("<2H", data, header + 26)
    data[header + 30 + name + extra + at] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_a_tensor_is_noticed(save: Save) -> None:
    path = save({"view": torch.zeros(1000)[:10]})
    flip(path, b"trainer/data/0", 3)
    with pytest.raises(MalformedFile, match="data/0: CRC-32 mismatch"):
        read(path)


def test_a_flipped_bit_beside_a_view_is_noticed_too(save: Save) -> None:
    path = save({"view": torch.zeros(1000)[:10]})
    flip(path, b"trainer/data/0", 3999)
    with pytest.raises(MalformedFile, match="data/0: CRC-32 mismatch"):
        read(path)


@pytest.mark.parametrize("record", [b"data.pkl", b"byteorder"])
def test_a_flipped_bit_in_what_is_parsed_is_noticed(save: Save, record: bytes) -> None:
    path = save({"lora": "alpha"})
    flip(path, b"trainer/" + record, 3)
    with pytest.raises(MalformedFile, match=f"{record.decode()}: CRC-32 mismatch"):
        read(path)


def test_a_file_without_checksums_is_read(save: Save) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = save(torch.ones(4))
    finally:
        torch.serialization.set_crc32_options(True)
    assert read(path)[1] == loaded(path)


def test_a_view_that_expands_to_more_than_the_file_is_refused(save: Save) -> None:
    path = save(torch.ones(1).expand(10_000, 10_000))
    with pytest.raises(MalformedFile, match="data/0: the tensor is expanded to more bytes than the file has"):
        read(path)


@pytest.mark.parametrize("lazy", [lambda value: value.conj(), lambda value: value.conj().imag])
def test_a_lazily_changed_tensor_is_refused_when_it_is_read(
    save: Save, lazy: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    path = save(lazy(torch.ones(3, dtype=torch.complex64)))
    with pytest.raises(UnsupportedLora, match="lazily"):
        read(path)


def test_a_file_that_changes_under_the_reader_is_refused(save: Save) -> None:
    path = save(torch.ones(300_000))
    before = path.stat()

    def rewrite(_: int) -> None:
        data = bytearray(path.read_bytes())
        data[-40] ^= 1  # in the archive's end, which was read first
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    todo = [rewrite]
    with open_torch_file(path) as file, pytest.raises(ChangedWhileRead):
        file.read([file.contents], lambda count: todo.pop()(count) if todo else None)


ONE_PASS = """
import sys
from registry.checkpoints.torchfile import open_torch_file
with open_torch_file(sys.argv[1]) as file:
    file.read(list(file.contents.values()))
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace shows the system calls")
def test_the_file_is_opened_once_and_streamed_once(save: Save, tmp_path: Path) -> None:
    path = save({"a": torch.zeros(200_000), "b": torch.ones(50)[10:20], "c": torch.zeros(70_000)})
    log = tmp_path / "log"
    calls = "trace=open,openat,read,readv,pread64,preadv,preadv2,mmap"
    command = [sys.executable, "-c", ONE_PASS, str(path)]
    subprocess.run(["strace", "-f", "-y", "-e", calls, "-o", str(log), *command], check=True)
    lines = [line for line in log.read_text().splitlines() if str(path) in line]
    assert sum(bool(re.search(r"\bopen(at)?\(", line)) for line in lines) == 1
    reads = [
        (int(match[1]), int(match[2]))
        for line in lines
        if (match := re.search(r"preadv2?\(.*\], 1, (\d+)(?:, 0)?\)\s+= (\d+)$", line))
    ]
    assert len(reads) == len(lines) - 1, "the file is read by position only"
    first = max(number for number, (at, _) in enumerate(reads) if at == 0)
    planning, stream = reads[:first], reads[first:]
    assert sum(count for _, count in planning) < 70_000
    end = 0
    for at, count in stream:
        assert at == end
        end = at + count
    assert end == path.stat().st_size


MEMORY = """
import resource, sys
from registry.checkpoints.torchfile import open_torch_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_torch_file(sys.argv[1]) as file:
    tensors = file.read([file.contents["wanted"]])[1]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, sum(len(t.storage) for t in tensors.values()))
"""


def test_memory_is_what_is_wanted_and_little_more(save: Save) -> None:
    path = save({"rest": torch.zeros(40_000_000), "wanted": torch.zeros(10_000_000)[:750_000]})
    assert path.stat().st_size > 200_000_000
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    path.unlink()
    grown, kept = map(int, done.stdout.split())
    assert kept == 3_000_000
    assert grown < 40_000


def test_neither_torch_nor_numpy_is_imported(save: Save) -> None:
    code = ONE_PASS + "print(sorted({'torch', 'numpy', 'zipfile', 'typer', 'sqlalchemy'} & set(sys.modules)))"
    command = [sys.executable, "-c", code, str(save({"a": torch.zeros(3)}))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


# Properties

shapes = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64, torch.bool]))
    tensor = random_tensor(dtype, *draw(shapes))
    for dimension in range(tensor.dim()):
        start = draw(st.integers(0, tensor.shape[dimension]))
        tensor = tensor[(slice(None),) * dimension + (slice(start, None, draw(st.integers(1, 2))),)]
    return tensor.permute(draw(st.permutations(range(tensor.dim()))))


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
checkpoints = st.recursive(
    tensors() | scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=checkpoints, protocol=st.integers(2, 5))
def test_any_checkpoint_is_read_as_torch_reads_it(
    tmp_path_factory: pytest.TempPathFactory, value: object, protocol: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "generated.pt"
    torch.save(value, path, pickle_protocol=protocol)
    digest, found = read(path)
    assert found == [
        (str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape), bits(leaf))
        for leaf in flat(value)
        if isinstance(leaf, torch.Tensor)
    ]
    assert digest == sha256(path)
    if protocol == 2:  # the only one that torch's own safe reader knows
        assert found == loaded(path)
    with open_torch_file(path) as file:
        plain = [leaf for leaf in flat(file.contents) if not isinstance(leaf, TensorRef)]
    assert plain == [leaf for leaf in flat(value) if not isinstance(leaf, torch.Tensor)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("original") / "file.pt"
    layer = torch.nn.Linear(3, 2)
    torch.save({"state": layer.state_dict(), "b": torch.ones(3).to(torch.uint16), "p": list(layer.parameters())}, path)
    return path.read_bytes()


edits = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5000), st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("insert"), st.integers(0, 5000), st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("delete"), st.integers(0, 5000), st.integers(1, 200)),
        st.tuples(st.just("copy"), st.integers(0, 5000), st.integers(0, 5000)),
        st.tuples(st.just("cut"), st.integers(0, 5000), st.none()),
    ),
    min_size=1,
    max_size=3,
)


def edited(original: bytes, steps: list[tuple[str, int, object]]) -> bytes:
    data = bytearray(original)
    for kind, position, value in steps:
        at = position % (len(data) + 1)
        match kind, value:
            case "set", bytes():
                data[at : at + len(value)] = value
            case "insert", bytes():
                data[at:at] = value
            case "delete", int():
                del data[at : at + value]
            case "copy", int():
                data[at : at + 60] = data[value % (len(data) + 1) :][:60]
            case _:
                del data[at:]
    return bytes(data)


def read_anything(path: Path) -> None:
    try:
        read(path)
    except RegistryError as error:
        str(error).encode()


@settings(max_examples=400, deadline=10_000)
@given(steps=edits)
def test_a_damaged_file_gives_only_our_errors(
    tmp_path_factory: pytest.TempPathFactory, original: bytes, steps: list[tuple[str, int, object]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.write_bytes(edited(original, steps))
    read_anything(path)


@settings(max_examples=400, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=edits)
def test_a_damaged_pickle_in_a_sound_archive_gives_only_our_errors(
    unpack: Unpack,
    pack: Save,
    tmp_path_factory: pytest.TempPathFactory,
    original: bytes,
    steps: list[tuple[str, int, object]],
) -> None:
    source = tmp_path_factory.getbasetemp() / "sound.pt"
    source.write_bytes(original)
    records = unpack(source)
    read_anything(pack({**records, "data.pkl": edited(records["data.pkl"], steps)}))


opcode_soup = st.lists(
    st.sampled_from(
        [
            *(bytes([byte]) for byte in b"()]}NteadlsuRob201Q\x85\x86\x87\x88\x81\x8f\x90\x91\x92\x93\x94"),
            *(b"q\1", b"q\2", b"h\1", b"h\2", b"K\1", b"X\1\0\0\0a", b"G?\xf0\0\0\0\0\0\0", b"\x8a\2\1\1"),
            *(
                b"cos\nsystem\n",
                b"itorch\nTensor\n",
                b"ctorch\nfloat32\n",
                b"ctorch\nSize\n",
                b"ctorch\nFloatStorage\n",
            ),
            *(b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n"),
            *(b"ccollections\nOrderedDict\n", b"ctorch._tensor\n_rebuild_from_type_v2\n"),
            b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ",
        ]
    ),
    max_size=40,
)


@settings(max_examples=1000, deadline=10_000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(soup=opcode_soup)
def test_any_opcodes_in_any_order_give_only_our_errors(pack: Save, soup: list[bytes]) -> None:
    read_anything(pack({"data.pkl": b"\x80\x04" + b"".join(soup) + b"."}))
