"""The zip container: what torch.save writes is located exactly, and everything else is refused by name."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from registry.checkpoints.archive import read_archive
from registry.checkpoints.source import Source
from registry.core.errors import MalformedFile

CENTRAL = b"PK\x01\x02"
END = b"PK\x05\x06"
Save = Callable[..., Path]


def read_records(path: Path) -> dict[str, bytes]:
    with Source(path) as source:
        archive = read_archive(source)
        records = {name: archive.locate(source, name) for name in archive.entries}
        return {name: source.peek(start, stop - start) for name, (start, stop, _) in records.items()}


def patched(path: Path, change: Callable[[bytearray], object]) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def poke(data: bytearray, at: int, form: str, *values: int) -> None:
    struct.pack_into(form, data, at, *values)


def line_of(data: bytearray, name: bytes) -> int:
    """Offset of the central directory's line about a record."""
    at = data.rfind(name)
    return data.rfind(CENTRAL, 0, at)


def header_of(data: bytearray, name: bytes) -> int:
    """Offset of a record's local header."""
    return struct.unpack_from("<I", data, line_of(data, name) + 42)[0]


@pytest.fixture
def saved(save: Save) -> Path:
    return save({"a": torch.arange(10.0), "b": torch.ones(3)})


def test_records_are_those_that_zipfile_reads(saved: Path, unpack: Callable[[Path], dict[str, bytes]]) -> None:
    assert read_records(saved) == unpack(saved)


def test_the_checksums_are_those_in_the_directory(saved: Path) -> None:
    with Source(saved) as source, zipfile.ZipFile(saved) as reference:
        entries = read_archive(source).entries
        assert {f"trainer/{name}": entry.crc32 for name, entry in entries.items()} == {
            info.filename: info.CRC for info in reference.infolist()
        }


def test_the_root_is_found_whatever_the_file_is_called(save: Save, tmp_path: Path) -> None:
    with Source(save([1], name="run 1.2.pt")) as source:
        assert read_archive(source).root == "run 1.2"
    buffer = io.BytesIO()
    torch.save([1], buffer)
    (tmp_path / "buffer.pt").write_bytes(buffer.getvalue())
    with Source(tmp_path / "buffer.pt") as source:
        assert read_archive(source).root == "archive"


def test_a_zip_by_another_writer_is_read(saved: Path, unpack: Callable[..., dict[str, bytes]], pack: Save) -> None:
    records = unpack(saved)
    assert read_records(pack(records)) == records


def test_zip64_sizes_and_offsets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", "data/0"):
            with archive.open(f"archive/{name}", "w", force_zip64=True) as file:
                file.write(name.encode() * 5)
    # Also in the central directory, where zipfile would only write them beyond 4 GiB.
    data = path.read_bytes()
    at = data.rfind(CENTRAL)
    fields = struct.unpack_from("<2I", data, at + 20)
    name_length, extra_length, offset = (
        *struct.unpack_from("<2H", data, at + 28),
        struct.unpack_from("<I", data, at + 42),
    )
    extra = struct.pack("<2H3Q", 1, 24, *fields, *offset)
    line = bytearray(data[at : at + 46 + name_length]) + extra
    poke(line, 20, "<2I", 0xFFFFFFFF, 0xFFFFFFFF)
    poke(line, 30, "<H", len(extra))
    poke(line, 42, "<I", 0xFFFFFFFF)
    end = bytearray(data[data.rfind(END) :])
    poke(end, 12, "<I", struct.unpack_from("<I", end, 12)[0] + len(extra) - extra_length)
    path.write_bytes(data[:at] + line + end)
    assert read_records(path) == {"data.pkl": b"data.pkl" * 5, "data/0": b"data/0" * 5}


def test_a_comment_is_allowed_only_if_it_ends_the_file(pack: Save) -> None:
    path = pack({"data.pkl": b"."})
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"PK\x05\x06 is no end"
    assert read_records(path) == {"data.pkl": b"."}
    patched(path, lambda data: data.extend(b"!"))
    with pytest.raises(MalformedFile, match="bytes follow"):
        read_records(path)


@pytest.mark.parametrize("tenths", range(0, 100, 7))
def test_a_truncated_file_is_refused(saved: Path, tenths: int) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: len(data) * tenths // 100])
    with pytest.raises(MalformedFile, match="truncated" if tenths else "empty"):
        read_records(saved)


@pytest.mark.parametrize("tail", [b"\0", b"\n", b"PK\x05\x06", bytes(70000)])
def test_trailing_bytes_are_refused(saved: Path, tail: bytes) -> None:
    patched(saved, lambda data: data.extend(tail))
    with pytest.raises(MalformedFile, match=r"bytes follow|truncated"):
        read_records(saved)


def test_bytes_in_front_are_refused(saved: Path) -> None:
    patched(saved, lambda data: data.insert(0, 0))
    with pytest.raises(MalformedFile, match=r"not a torch.save file"):
        read_records(saved)


def test_an_archive_behind_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "behind.pt"
    path.write_bytes(b"PK\x03\x04 is how a zip starts, and zipfile appends to anything")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data.pkl", b".")
    with pytest.raises(MalformedFile, match="does not start with a record"):
        read_records(path)


def test_a_compressed_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deflated.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1000))
    with pytest.raises(MalformedFile, match=r"data\.pkl: the record is compressed"):
        read_records(path)


@pytest.mark.parametrize("flag", [1 << 0, 1 << 6])
def test_an_encrypted_record_is_refused(saved: Path, flag: int) -> None:
    patched(saved, lambda data: poke(data, line_of(data, b"data/1") + 8, "<H", flag))
    with pytest.raises(MalformedFile, match="data/1: the record is encrypted"):
        read_records(saved)


def test_a_name_used_twice_is_refused(saved: Path) -> None:
    def rename(data: bytearray) -> None:
        at = data.rfind(b"data/1")
        data[at : at + 6] = b"data/0"

    with pytest.raises(MalformedFile, match="data/0: the archive names this record twice"):
        read_records(patched(saved, rename))


@pytest.mark.parametrize(
    "name",
    [
        b"/archive/x",
        b"../archive",
        b"archive/../x",
        b"archive\\x",
        b"archive//x",
        b"archive/\0x",
        b"archive/dir/",
        b"\xff/x",
    ],
)
def test_a_name_that_is_no_plain_path_is_refused(pack: Save, name: bytes) -> None:
    stand_in = b"archive/" + b"x" * (len(name) + 1)
    path = pack({"data.pkl": b".", stand_in[8:].decode(): b""})

    def rename(data: bytearray) -> None:
        at = data.rfind(stand_in)
        poke(data, line_of(data, stand_in) + 28, "<2H", len(name), len(stand_in) - len(name))
        data[at : at + len(stand_in)] = name.ljust(len(stand_in), b"\0")  # what is left over becomes an extra field

    with pytest.raises(MalformedFile, match=r"not a plain relative path|not UTF-8"):
        read_records(patched(path, rename))


def test_records_in_two_folders_are_refused(saved: Path) -> None:
    def rename(data: bytearray) -> None:
        at = data.rfind(b"trainer/data/1")
        data[at : at + 7] = b"another"

    with pytest.raises(MalformedFile, match="outside the folder 'trainer'"):
        read_records(patched(saved, rename))


def test_records_that_overlap_are_refused(saved: Path) -> None:
    def overlap(data: bytearray) -> None:
        poke(data, line_of(data, b"data/1") + 42, "<I", header_of(data, b"data/0") + 50)

    with pytest.raises(MalformedFile, match="overlaps"):
        read_records(patched(saved, overlap))


def test_two_names_for_the_same_bytes_are_refused(saved: Path) -> None:
    def alias(data: bytearray) -> None:
        poke(data, line_of(data, b"data/1") + 42, "<I", header_of(data, b"data/0"))

    with pytest.raises(MalformedFile, match="overlaps"):
        read_records(patched(saved, alias))


@pytest.mark.parametrize("size", [70, 1000, 0xFFFF_FFFE])
def test_a_record_that_reaches_into_the_next_is_refused(saved: Path, size: int) -> None:
    patched(saved, lambda data: poke(data, line_of(data, b"data/0") + 20, "<2I", size, size))
    with pytest.raises(MalformedFile, match=r"overlaps|damaged"):
        read_records(saved)


def test_a_record_that_reaches_into_the_next_through_its_own_header_is_refused(saved: Path) -> None:
    """The directory alone cannot tell: it does not say how long the local header's extra field is."""
    patched(saved, lambda data: poke(data, header_of(data, b"data/0") + 28, "<H", 90))
    with pytest.raises(MalformedFile, match="data/0: the record's own header is damaged"):
        read_records(saved)


def test_an_offset_beyond_the_file_is_refused(saved: Path) -> None:
    patched(saved, lambda data: poke(data, line_of(data, b"data/1") + 42, "<I", 0xFFFF_FFFE))
    with pytest.raises(MalformedFile, match="overlaps"):
        read_records(saved)


@pytest.mark.parametrize(
    ("field", "form", "value"),
    [
        (0, "<I", 0),
        (6, "<H", 1),
        (8, "<H", 8),
        (14, "<I", 77),
        (18, "<I", 5),
        (22, "<I", 5),
        (26, "<H", 3),
        (31, "<B", 0),
    ],
    ids=["signature", "encrypted", "method", "crc", "stored size", "size", "name length", "name"],
)
def test_a_local_header_that_disagrees_with_the_directory_is_refused(
    saved: Path, field: int, form: str, value: int
) -> None:
    patched(saved, lambda data: poke(data, header_of(data, b"data/0") + field, form, value))
    with pytest.raises(MalformedFile, match="data/0: the record's own header"):
        read_records(saved)


@pytest.mark.parametrize(
    ("field", "form", "values"),
    [
        (4, "<H", [1]),
        (6, "<H", [1]),
        (8, "<H", [1]),
        (8, "<2H", [1, 1]),
        (8, "<2H", [3, 3]),
        (12, "<I", [1]),
        (16, "<I", [1]),
    ],
    ids=["disk", "directory's disk", "count here", "too few", "too many", "size", "offset"],
)
def test_a_damaged_end_is_refused(pack: Save, field: int, form: str, values: list[int]) -> None:
    path = pack({"data.pkl": b".", "data/0": b"1234"})
    patched(path, lambda data: poke(data, data.rfind(END) + field, form, *values))
    with pytest.raises(MalformedFile):
        read_records(path)


@pytest.mark.parametrize("field", [4, 16, 20, 24, 32, 40, 48])
def test_a_damaged_zip64_end_is_refused(saved: Path, field: int) -> None:
    patched(saved, lambda data: poke(data, data.rfind(b"PK\x06\x06") + field, "<B", 201))
    with pytest.raises(MalformedFile):
        read_records(saved)


@pytest.mark.parametrize("field", [4, 8, 16])
def test_a_damaged_zip64_locator_is_refused(saved: Path, field: int) -> None:
    patched(saved, lambda data: poke(data, data.rfind(b"PK\x06\x07") + field, "<B", 201))
    with pytest.raises(MalformedFile, match="zip64 end"):
        read_records(saved)


def test_an_end_that_contradicts_its_zip64_form_is_refused(saved: Path) -> None:
    """Readers that know no zip64 would see another archive."""
    patched(saved, lambda data: poke(data, data.rfind(END) + 8, "<2H", 2, 2))
    with pytest.raises(MalformedFile, match="zip64 end"):
        read_records(saved)


def test_torchscript_is_named(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.trace(module, torch.ones(1, 2)), tmp_path / "script.pt")
    with pytest.raises(MalformedFile, match="TorchScript archive"):
        read_records(tmp_path / "script.pt")


def test_the_legacy_format_is_named(save: Save) -> None:
    with pytest.raises(MalformedFile, match="legacy"):
        read_records(save({"a": torch.ones(2)}, _use_new_zipfile_serialization=False))


def test_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data, message in [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        (b"\x08\0\0\0\0\0\0\0{}      ", "not a torch.save file"),
        (b"PK\x05\x06" + bytes(18), "not a torch.save file"),
        (b"PK\x03\x04", "truncated"),
    ]:
        path.write_bytes(data)
        with pytest.raises(MalformedFile, match=message):
            read_records(path)


def test_a_zip_without_a_pickle_is_named(pack: Save) -> None:
    with pytest.raises(MalformedFile, match=r"no data\.pkl"):
        read_records(pack({"data/0": b"1234"}))


def test_a_record_that_is_not_there_is_named(saved: Path) -> None:
    with Source(saved) as source, pytest.raises(MalformedFile, match="data/7: the archive has no such record"):
        read_archive(source).locate(source, "data/7")


def test_an_enormous_directory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path, size = tmp_path / "huge.pt", 65 << 20
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(4 + size)
        file.seek(4 + size)
        file.write(struct.pack("<4s4H2IH", END, 0, 0, 1, 1, size, 4, 0))
    with pytest.raises(MalformedFile, match="directory is larger"):
        read_records(path)
