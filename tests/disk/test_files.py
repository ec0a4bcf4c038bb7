"""Single files: nothing is overwritten or linked, and every failure is one of the project's own errors."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.core.digest import Digest
from registry.core.errors import IntegrityError, NotFound, Refused, RegistryError, StorageError
from registry.disk import (
    copy_verified,
    directory_inside,
    hash_file,
    list_names,
    make_directories,
    open_inside,
    open_regular,
    read_small,
    write_file,
)

DATA = bytes(range(256)) * 3000  # several blocks, the last one incomplete


def sha256(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    path.chmod(0o444)
    return path


def test_copy_is_another_file_so_that_nothing_done_to_it_reaches_the_source(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with open_regular(str(source)) as file:
        copy_verified(file, str(copy), sha256(DATA))
    assert copy.read_bytes() == DATA
    assert copy.stat().st_ino != source.stat().st_ino
    assert source.stat().st_nlink == copy.stat().st_nlink == 1
    copy.write_bytes(b"")
    assert source.read_bytes() == DATA


def test_copy_that_does_not_match_is_removed_and_names_the_source(source: Path, tmp_path: Path) -> None:
    wanted = sha256(b"something else")
    with open_regular(str(source)) as file, pytest.raises(IntegrityError) as caught:
        copy_verified(file, str(tmp_path / "copy"), wanted)
    assert not (tmp_path / "copy").exists()
    assert (caught.value.path, caught.value.found, caught.value.expected) == (str(source), sha256(DATA), wanted)


def test_copy_never_writes_over_a_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(b"mine")
    with open_regular(str(source)) as file, pytest.raises(StorageError, match="exists"):
        copy_verified(file, str(tmp_path / "copy"), sha256(DATA))
    assert (tmp_path / "copy").read_bytes() == b"mine"


def test_hash_covers_every_byte_and_shows_every_block(source: Path) -> None:
    seen = bytearray()
    with open_regular(str(source)) as file:
        assert hash_file(file, seen.extend) == sha256(DATA)
    assert seen == DATA


@pytest.mark.parametrize("there", ["file", "link to nothing", "link to a file", "directory"])
def test_written_file_never_replaces_what_is_there(there: str, source: Path, tmp_path: Path) -> None:
    path, victim = tmp_path / "new", tmp_path / "victim"
    match there:
        case "file":
            path.write_bytes(b"mine")
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to(victim if there == "link to nothing" else source)
    with pytest.raises(StorageError, match="exists"):
        write_file(str(path), [b"new"])
    assert not victim.exists()
    assert source.read_bytes() == DATA


def test_written_file_holds_all_chunks_and_its_length_is_told(tmp_path: Path) -> None:
    chunks = [DATA, b"", bytearray(b"tail"), memoryview(DATA)[5:9]]
    assert write_file(str(tmp_path / "new"), chunks) == len(DATA) + 8
    assert (tmp_path / "new").read_bytes() == b"".join(chunks)


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_written_file_has_the_mode_that_the_umask_gives(umask: int, mode: int, tmp_path: Path, source: Path) -> None:
    before = os.umask(umask)
    try:
        write_file(str(tmp_path / "new"), [b""])
        with open_regular(str(source)) as file:
            copy_verified(file, str(tmp_path / "copy"), sha256(DATA))
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "copy")] == [mode, mode]


@pytest.fixture(params=["directory", "fifo", "device", "socket"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "odd"
    match request.param:
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(os.path.relpath(path))
                yield path
                return
    yield path


def test_what_is_no_regular_file_is_refused_without_waiting_or_leaking(no_file: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for attempt in (open_regular, read_small):
        with pytest.raises((Refused, StorageError)) as caught:
            attempt(str(no_file))
        assert caught.value.path == str(no_file)
    assert os.listdir("/proc/self/fd") == before


def test_missing_file_is_not_found_and_a_file_in_place_of_a_directory_a_storage_error(source: Path) -> None:
    with pytest.raises(NotFound):
        open_regular(f"{source}.missing")
    with pytest.raises(StorageError, match="not a directory"):
        open_regular(f"{source}/below")


def test_small_file_has_a_limit(source: Path) -> None:
    assert read_small(str(source), len(DATA)) == DATA
    with pytest.raises(Refused, match="larger"):
        read_small(str(source), len(DATA) - 1)


def test_small_file_is_up_to_sixteen_mebibytes_unless_more_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    for size in (16 << 20, (16 << 20) + 1):
        with path.open("wb") as file:
            file.truncate(size)
        if size <= 16 << 20:
            assert len(read_small(str(path))) == size
        else:
            with pytest.raises(Refused, match=f"at most {16 << 20} bytes"):
                read_small(str(path))
    assert len(read_small(str(path), size)) == size


def test_directories_are_made_with_their_parents_and_making_them_again_is_harmless(
    source: Path, tmp_path: Path
) -> None:
    deep = tmp_path / "a" / "b" / "c"
    make_directories(str(deep))
    make_directories(str(deep))
    assert list_names(str(deep.parent)) == ["c"]
    assert list_names(str(deep / "missing")) == []
    with pytest.raises(RegistryError):
        make_directories(f"{source}/below")


def test_every_directory_that_is_made_is_synced_in_its_parent_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = [], os.fsync

    def noted(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.listdir(descriptor)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    make_directories(str(tmp_path / "a" / "b" / "c"))
    assert synced == [(str(tmp_path), ["a"]), (str(tmp_path / "a"), ["b"]), (str(tmp_path / "a" / "b"), ["c"])]
    make_directories(str(tmp_path / "a" / "b" / "c"))
    assert len(synced) == 3, "what was there already costs nothing"


def test_name_that_no_file_system_takes_is_a_storage_error_wherever_it_stands(tmp_path: Path) -> None:
    long = "x" * 300
    with directory_inside(str(tmp_path)) as directory, pytest.raises(StorageError, match="too long") as caught:
        open_inside(directory, long, "the/file")
    assert caught.value.path == "the/file"
    with pytest.raises(StorageError, match="too long") as caught, directory_inside(str(tmp_path), long, "below"):
        pass
    assert caught.value.path == str(tmp_path / long)
    with pytest.raises(StorageError, match="too long") as caught, directory_inside(str(tmp_path / long)):
        pass
    assert caught.value.path == str(tmp_path / long)
