"""The publication rule: a name is reserved by making it, and only that reservation is ever replaced."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.core.errors import NotFound, OutputExists, Refused, RegistryError, StorageError
from registry.disk import NewFiles, OutputDirectory
from tests.support.trees import contents, snapshot

FILES = {"one.bin": b"1" * 1000, "two.json": b"{}\n"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def partial(out: Path) -> Path:
    return out.with_name("out.partial")


def publish(path: Path, meanwhile: Callable[[], object] = lambda: None, **options: bool) -> None:
    """Make the directory; `meanwhile` happens between reservation and publication."""
    with OutputDirectory(str(path), FILES, **options) as output:
        for name, data in FILES.items():
            output.files.write(name, [data])
        meanwhile()
        output.publish()


@pytest.mark.parametrize(
    ("umask", "modes"), [(0o002, (0o775, 0o664)), (0o022, (0o755, 0o644)), (0o077, (0o700, 0o600))]
)
def test_published_directory_holds_the_files_with_the_umasks_modes(
    umask: int, modes: tuple[int, int], out: Path, partial: Path
) -> None:
    before = os.umask(umask)
    try:
        publish(out)
    finally:
        os.umask(before)
    assert contents(out) == FILES
    assert not partial.exists()
    assert out.stat().st_mode & 0o777 == modes[0]
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {modes[1]}


def make_file(path: Path) -> None:
    path.write_text("mine")


def make_full_directory(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("mine")


def make_link(path: Path) -> None:
    path.with_name("elsewhere").mkdir()
    path.symlink_to(path.with_name("elsewhere"))


def make_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


KINDS = [make_file, Path.mkdir, make_full_directory, make_link, make_dangling_link, os.mkfifo]


@pytest.mark.parametrize("make", KINDS)
def test_whatever_exists_is_refused_and_left_alone(
    make: Callable[[Path], None], out: Path, partial: Path, tmp_path: Path
) -> None:
    make(out)
    before = snapshot(tmp_path)
    with pytest.raises(OutputExists, match="already exists"):
        publish(out)
    assert snapshot(tmp_path) == before
    assert not partial.exists()


def test_what_is_put_into_the_reservation_is_kept_and_the_result_stays_beside_it(out: Path, partial: Path) -> None:
    with pytest.raises(OutputExists) as caught:
        publish(out, lambda: make_file(out / "mine"))
    assert contents(out) == {"mine": b"mine"}
    assert contents(partial) == FILES
    assert str(partial) in str(caught.value)


@pytest.mark.parametrize("make", KINDS)
def test_what_replaces_the_reservation_is_kept_and_the_result_stays_beside_it(
    make: Callable[[Path], None], out: Path, partial: Path
) -> None:
    put = []

    def replace() -> None:
        out.rename(out.with_name("moved"))  # kept, so that its inode is not given to what comes
        make(out)
        put.append(out.lstat())

    with pytest.raises(OutputExists, match="replaced"):
        publish(out, replace)
    assert os.path.samestat(out.lstat(), put[0])
    assert contents(partial) == FILES


def test_reservation_that_was_removed_is_not_taken_again(out: Path, partial: Path) -> None:
    with pytest.raises(OutputExists):
        publish(out, out.rmdir)
    assert not out.exists()
    assert contents(partial) == FILES


def fail() -> None:
    raise KeyboardInterrupt


def test_failure_gives_the_name_back_and_keeps_what_was_written(out: Path, partial: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        publish(out, fail)
    assert not out.exists()
    assert contents(partial) == FILES


def test_failure_of_a_copy_that_can_be_made_again_leaves_nothing(out: Path, partial: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        publish(out, fail, keep_partial=False)
    assert not out.exists()
    assert not partial.exists()


def test_failure_before_anything_was_written_leaves_nothing(out: Path, partial: Path) -> None:
    with pytest.raises(KeyboardInterrupt), OutputDirectory(str(out), FILES):
        fail()
    assert not out.exists()
    assert not partial.exists()


def test_leftover_of_an_earlier_failure_is_replaced(out: Path, partial: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        publish(out, fail)
    (partial / "one.bin").write_bytes(b"stale")
    publish(out)
    assert contents(out) == FILES
    assert not partial.exists()


@pytest.mark.parametrize("keep_partial", [True, False])
@pytest.mark.parametrize("make", [make_file, make_full_directory, make_link, os.mkfifo])
def test_partial_that_is_not_ours_is_refused_and_left_alone(
    make: Callable[[Path], None], keep_partial: bool, out: Path, partial: Path, tmp_path: Path
) -> None:
    make(partial)
    before = contents(tmp_path), partial.lstat()
    with pytest.raises(Refused, match="in the way") as caught:
        publish(out, keep_partial=keep_partial)
    assert caught.value.path == str(partial)
    assert (contents(tmp_path), partial.lstat()) == before
    assert not out.exists()


def test_missing_parent_is_not_found_and_a_file_as_parent_a_storage_error(tmp_path: Path) -> None:
    make_file(tmp_path / "file")
    with pytest.raises(NotFound):
        publish(tmp_path / "missing" / "out")
    with pytest.raises(StorageError):
        publish(tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (Path.mkdir, "an empty directory, perhaps left by an interrupted command"),
        (make_full_directory, "Nothing was written"),
        (make_file, "Nothing was written"),
    ],
)
def test_what_is_in_the_way_decides_the_advice(make: Callable[[Path], None], hint: str, out: Path) -> None:
    make(out)
    with pytest.raises(OutputExists) as caught:
        publish(out)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("make", [make_link, make_file, os.mkfifo])
def test_what_takes_the_new_reservations_place_at_once_is_neither_followed_nor_opened(
    make: Callable[[Path], None], out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, put = os.mkdir, []

    def outrun(path: str) -> None:
        mkdir(path)
        if path == str(out):
            monkeypatch.setattr(os, "mkdir", mkdir)
            out.rename(out.with_name("moved"))
            make(out)
            put.append(out.lstat())

    monkeypatch.setattr(os, "mkdir", outrun)
    with pytest.raises(StorageError):
        publish(out)
    assert os.path.samestat(out.lstat(), put[0])
    assert not list(out.parent.glob("elsewhere/*"))
    assert not partial.exists()


def test_file_that_takes_the_reservations_place_in_the_last_moment_is_kept(
    out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def outrun(source: str, target: str) -> None:
        out.rmdir()
        make_file(out)
        rename(source, target)

    monkeypatch.setattr(os, "rename", outrun)
    with pytest.raises(OutputExists, match="appeared meanwhile") as caught:
        publish(out)
    assert (out.read_text(), contents(partial)) == ("mine", FILES)
    assert str(partial) in str(caught.value.hint)


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EEXIST, OutputExists), (errno.ENOTDIR, OutputExists), (errno.EIO, StorageError)]
)
def test_rename_that_fails_tells_whether_something_is_there_or_the_disk_is_at_fault(
    code: int, kind: type[RegistryError], out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_source: str, _target: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(kind) as caught:
        publish(out)
    assert caught.value.path == str(out)
    assert contents(partial) == FILES
    assert not out.exists()


def test_name_that_leaves_no_room_for_that_of_the_partial_directory_is_a_storage_error(tmp_path: Path) -> None:
    out = tmp_path / ("x" * 250)
    with pytest.raises(StorageError, match="name too long") as caught:
        publish(out)
    assert caught.value.path == f"{out}.partial"
    assert list(tmp_path.iterdir()) == []


def test_disk_that_has_no_room_for_the_partial_directory_is_a_storage_error_and_gives_the_name_back(
    out: Path, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def full(path: str) -> None:
        if path == str(partial):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(StorageError, match="free some space") as caught:
        publish(out)
    assert caught.value.path == str(partial)
    assert not out.exists()


@pytest.mark.parametrize("durable", [True, False])
def test_published_directory_is_synced_with_its_files_and_in_its_parent_unless_that_is_not_wanted(
    durable: bool, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = [], os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with OutputDirectory(str(out), FILES) as output:
        for name, data in FILES.items():
            output.files.write(name, [data])
        partial = output.partial
        if durable:
            output.publish()
        else:
            output.publish(durable=False)
    files = [f"{partial}/{name}" for name in FILES]
    assert synced == ([*files, partial, str(out.parent)] if durable else [])


def test_no_descriptor_is_left_open_whatever_happens(out: Path) -> None:
    before = os.listdir("/proc/self/fd")
    publish(out)
    for options in ({"keep_partial": True}, {"keep_partial": False}):
        with pytest.raises(OutputExists):
            publish(out, **options)
        with pytest.raises(KeyboardInterrupt):
            publish(out.with_name("other"), fail, **options)
    assert os.listdir("/proc/self/fd") == before


def test_file_that_the_disk_does_not_take_whole_is_a_storage_error_that_names_it(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        files = NewFiles(str(tmp_path), 0o666)
        with pytest.raises(StorageError, match="file too large") as caught:
            files.write("one.bin", [FILES["one.bin"]])
        files.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.path == str(tmp_path / "one.bin")


def test_files_are_closed_once_they_are_on_the_disk(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    files = NewFiles(str(tmp_path), 0o666)
    assert [files.write(name, [data[:1], data[1:]]) for name, data in FILES.items()] == [1000, 3]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2, "an error in writing them back is told to who has them"
    files.sync()
    assert os.listdir("/proc/self/fd") == before
    assert contents(tmp_path) == FILES
