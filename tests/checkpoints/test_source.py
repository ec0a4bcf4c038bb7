"""One open file: what is hashed is what is kept, and a file that changes meanwhile is noticed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.checkpoints.source import CHUNK, Range, Source
from registry.core.digest import Digest
from registry.core.errors import ChangedWhileRead, MalformedFile, NotFound, StorageError

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]


def sha256(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


@pytest.fixture
def data() -> bytes:
    return os.urandom(2 * CHUNK + 1000)


@pytest.fixture
def path(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("size", SIZES)
def test_the_digest_is_that_of_every_byte(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    with Source(tmp_path / "file") as source:
        assert source.size == size
        assert source.stream([(size // 3, size // 2)]).digest == sha256(data)


@pytest.mark.parametrize("size", SIZES)
def test_progress_adds_up_to_the_size(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(bytes(size))
    steps: list[int] = []
    with Source(tmp_path / "file") as source:
        source.stream([(size // 3, size // 2)], steps.append)
    assert sum(steps) == size
    assert max(steps, default=0) <= CHUNK


ranges = st.lists(
    st.tuples(st.integers(0, CHUNK + 999), st.integers(0, CHUNK + 999)).map(lambda pair: tuple(sorted(pair)))
)


@settings(deadline=None)
@given(wanted=ranges, edges=st.lists(st.integers(0, CHUNK + 999), max_size=8), seed=st.binary(min_size=1, max_size=9))
def test_any_ranges_give_the_file_s_own_bytes_and_checksums(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, int]], edges: list[int], seed: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges"
    data = (seed * (CHUNK + 1000))[: CHUNK + 999]
    path.write_bytes(data)
    disjoint = sorted(set(edges))
    checked = {Range(*pair) for pair in zip(disjoint[::2], disjoint[1::2], strict=False)}
    with Source(path) as source:
        streamed = source.stream(wanted, checked=checked)
    assert streamed.digest == sha256(data)
    assert all(streamed.view(start, stop) == data[start:stop] for start, stop in wanted)
    assert streamed.crcs == {(start, stop): zlib.crc32(data[start:stop]) for start, stop in checked}
    covered = {position for start, stop in wanted for position in range(start, stop)}
    assert sum(len(segment.data) for segment in streamed.segments) == len(covered)


def test_kept_bytes_cannot_be_written_to(path: Path) -> None:
    with Source(path) as source:
        assert source.stream([(5, 50)]).view(7, 9).readonly


def test_kept_bytes_outlive_the_open_file(path: Path, data: bytes) -> None:
    with Source(path) as source:
        streamed = source.stream([(5, 50)])
    path.unlink()
    assert streamed.view(5, 50) == data[5:50]


def test_a_range_outside_the_file_is_a_mistake_of_the_caller(path: Path, data: bytes) -> None:
    with Source(path) as source, pytest.raises(ValueError, match="do not lie in a file"):
        source.stream([(0, len(data) + 1)])


def test_peek_reads_any_part_and_refuses_what_the_file_does_not_have(path: Path, data: bytes) -> None:
    with Source(path) as source:
        assert source.peek(10, 20) == data[10:30]
        assert source.peek(len(data), 0) == b""
        with pytest.raises(MalformedFile, match="truncated"):
            source.peek(len(data) - 5, 6)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def overwrite_unseen(path: Path, offset: int, data: bytes) -> None:
    """Write without leaving a trace in the file's times."""
    before = path.stat()
    overwrite(path, offset, data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def once(action: Callable[[], object]) -> Callable[[int], None]:
    """A progress callback that acts on its first call."""
    todo = [action]
    return lambda _: todo.pop()() and None if todo else None


def test_bytes_that_differ_from_those_peeked_at_are_noticed(path: Path) -> None:
    with Source(path) as source:
        source.peek(CHUNK + 100, 10)
        with pytest.raises(ChangedWhileRead):
            source.stream([], once(lambda: overwrite_unseen(path, CHUNK + 105, b"\0\0\0")))


def test_bytes_peeked_at_in_overlapping_parts_are_all_compared(path: Path) -> None:
    with Source(path) as source:
        source.peek(CHUNK + 100, 10)
        overwrite_unseen(path, CHUNK + 105, b"\0\0\0\0\0")
        source.peek(CHUNK + 100, 30)
        with pytest.raises(ChangedWhileRead):
            source.stream([])


def test_a_write_during_the_pass_is_noticed(path: Path) -> None:
    with Source(path) as source, pytest.raises(ChangedWhileRead):
        source.stream([], once(lambda: overwrite(path, 0, b"new")))


def test_a_file_that_grows_during_the_pass_is_noticed(path: Path, data: bytes) -> None:
    with Source(path) as source, pytest.raises(ChangedWhileRead):
        source.stream([], once(lambda: overwrite_unseen(path, len(data), b"more")))


def test_a_file_that_shrinks_during_the_pass_is_noticed(path: Path) -> None:
    with Source(path) as source, pytest.raises(ChangedWhileRead, match="cut short"):
        source.stream([], once(lambda: os.truncate(path, CHUNK + 5)))


def test_a_file_replaced_during_the_pass_is_read_as_it_was(path: Path, data: bytes) -> None:
    new = path.with_name("new")
    new.write_bytes(bytes(len(data)))
    with Source(path) as source:
        streamed = source.stream([(0, len(data))], once(lambda: new.rename(path)))
    assert streamed.digest == sha256(data)
    assert streamed.view(0, len(data)) == data


def test_a_symbolic_link_is_followed(path: Path, data: bytes) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with Source(link) as source:
        assert source.stream([]).digest == sha256(data)


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(MalformedFile, match="not a regular file"):
        Source(tmp_path / "fifo")


@pytest.mark.parametrize("path", ["/", "/dev/null"])
def test_a_directory_or_device_is_refused(path: str) -> None:
    with pytest.raises(MalformedFile, match="not a regular file"):
        Source(path)


@pytest.mark.parametrize("path", ["/no/such/file", "/dev/null/file", "nul\0byte", "\ud800"])
def test_a_missing_or_impossible_path_is_not_found(path: str) -> None:
    with pytest.raises(NotFound) as caught:
        Source(path)
    str(caught.value).encode()


def test_a_path_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match="cannot be opened"):
        Source(tmp_path / "loop")


READ = """
import sys
from registry.checkpoints.source import Source
from registry.core.errors import StorageError
try:
    with Source(sys.argv[1]) as source:
        source.stream([])
except StorageError as error:
    print(error)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes the system calls fail")
@pytest.mark.parametrize(
    ("calls", "errno", "message"),
    [
        ("open,openat", "EACCES", "cannot be opened (Permission denied)"),
        ("preadv,preadv2", "EIO", "cannot be read (Input/output error)"),
    ],
)
def test_a_failing_disk_is_a_storage_error(path: Path, calls: str, errno: str, message: str) -> None:
    fault = ["-e", f"trace={calls}", "-e", f"inject={calls}:error={errno}", "-P", str(path)]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, *fault, sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{path}: {message}\n"
