"""Replacing a directory: in one step, only one that holds files of known names, and with everything put back if not."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.core.errors import NotFound, OutputExists, StorageError
from registry.disk import Replacement
from tests.support.trees import contents, snapshot

NAMES = ("one", "two", "three")
OLD, NEW = {"one": b"old", "two": b"old"}, {"one": b"new", "three": b"new"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A directory with the old files."""
    path = tmp_path / "place" / "out"
    path.mkdir(parents=True)
    for name, data in OLD.items():
        (path / name).write_bytes(data)
    return path


def replace(path: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Replace it; `meanwhile` happens before the new one takes its place."""
    with Replacement(str(path), NAMES) as output:
        for name, data in NEW.items():
            output.files.write(name, [data])
        meanwhile()
        output.publish()


def test_new_directory_is_there_and_nothing_of_the_old_one(out: Path) -> None:
    replace(out)
    assert contents(out) == NEW
    assert list(out.parent.iterdir()) == [out]


def add_file(path: Path) -> None:
    (path / "mine").write_text("mine")


def add_directory(path: Path) -> None:
    (path / "one").unlink()
    (path / "one").mkdir()


def add_link(path: Path) -> None:
    (path / "three").symlink_to(path / "one")


def add_pipe(path: Path) -> None:
    os.mkfifo(path / "three")


@pytest.mark.parametrize("add", [add_file, add_directory, add_link, add_pipe])
def test_directory_with_anything_else_is_refused_and_left_alone(add: Callable[[Path], None], out: Path) -> None:
    add(out)
    before = snapshot(out.parent)
    with pytest.raises(OutputExists, match="other files"):
        replace(out)
    assert snapshot(out.parent) == before


@pytest.mark.parametrize("add", [add_file, add_directory, add_link, add_pipe])
def test_what_somebody_puts_there_meanwhile_is_kept_in_its_place(add: Callable[[Path], None], out: Path) -> None:
    with pytest.raises(OutputExists, match="other files") as caught:
        replace(out, lambda: add(out))
    assert caught.value.path == str(out)
    assert (out / "two").read_bytes() == b"old"
    assert len(list(out.iterdir())) >= 2
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_directory_is_refused_and_left_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    if kind == "file":
        (tmp_path / "out").write_text("mine")
    else:
        (tmp_path / "out").symlink_to(tmp_path / "there")
    before = snapshot(tmp_path)
    with pytest.raises(OutputExists, match="no directory"):
        replace(tmp_path / "out")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_takes_the_old_ones_place_before_it_is_removed_is_neither_followed_nor_emptied(
    kind: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, real = tmp_path / "victim", os.open
    victim.mkdir()
    (victim / "one").write_bytes(b"mine")

    def outrun(path: str, flags: int, *rest: int, **options: int) -> int:
        if f"{out}.partial-" in path and flags & os.O_CREAT == 0:
            monkeypatch.setattr(os, "open", real)
            Path(path).rename(tmp_path / "moved")
            if kind == "link":
                Path(path).symlink_to(victim)
            else:
                Path(path).write_bytes(b"mine")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", outrun)
    with pytest.raises(StorageError, match="could not be removed") as caught:
        replace(out)
    refused = caught.value.__cause__
    assert isinstance(refused, OSError)
    assert refused.filename == caught.value.path, "it was not even opened: a pipe would wait for ever"
    assert contents(out) == NEW
    assert contents(victim) == {"one": b"mine"}


def fail() -> None:
    raise KeyboardInterrupt


def test_failure_leaves_the_old_directory_and_nothing_beside_it(out: Path) -> None:
    before = snapshot(out)
    with pytest.raises(KeyboardInterrupt):
        replace(out, fail)
    assert snapshot(out) == before
    assert list(out.parent.iterdir()) == [out]


def test_two_at_once_do_not_meet_and_the_last_one_stays(out: Path) -> None:
    def another() -> None:
        with Replacement(str(out), NAMES) as output:
            output.files.write("two", [b"another"])
            output.publish()

    replace(out, another)
    assert contents(out) == NEW
    assert list(out.parent.iterdir()) == [out]


class Refusing:
    """A C library whose exchange of two names fails with `code`, or which has none."""

    def __init__(self, code: int | None) -> None:
        if code is not None:
            self.renameat2 = lambda *_: ctypes.set_errno(code) or -1


def without_exchange(monkeypatch: pytest.MonkeyPatch, code: int | None = errno.EINVAL) -> None:
    def library(name: None, *, use_errno: bool = False) -> Refusing:
        assert name is None
        return Refusing(code if use_errno or code is None else 0)

    monkeypatch.setattr(ctypes, "CDLL", library)


CANNOT = [errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM, None]


@pytest.mark.parametrize("code", CANNOT)
def test_where_two_names_cannot_be_exchanged_the_old_directory_makes_way(
    code: int | None, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_exchange(monkeypatch, code)
    replace(out)
    assert contents(out) == NEW
    assert list(out.parent.iterdir()) == [out]


def test_where_they_can_be_exchanged_neither_is_ever_away(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(source: str, target: str) -> None:
        raise AssertionError(source, target)

    monkeypatch.setattr(os, "rename", away)
    replace(out)
    assert contents(out) == NEW


def test_exchange_that_fails_leaves_the_old_directory_and_says_why(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_exchange(monkeypatch, errno.EIO)
    before = snapshot(out)
    with pytest.raises(StorageError, match="input/output error") as caught:
        replace(out)
    assert caught.value.path == str(out)
    assert snapshot(out) == before
    assert list(out.parent.iterdir()) == [out]


def test_old_directory_comes_back_where_the_new_one_cannot_follow(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_exchange(monkeypatch)
    before, rename, renamed = snapshot(out), os.rename, []

    def failing(source: str, target: str) -> None:
        renamed.append((source, target))
        if len(renamed) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(StorageError, match="input/output error"):
        replace(out)
    assert snapshot(out) == before
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("add", [add_file, add_directory, add_link, add_pipe])
def test_what_somebody_puts_there_meanwhile_is_kept_where_two_names_cannot_be_exchanged(
    add: Callable[[Path], None], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_exchange(monkeypatch)
    with pytest.raises(OutputExists, match="other files"):
        replace(out, lambda: add(out))
    assert (out / "two").read_bytes() == b"old"
    assert list(out.parent.iterdir()) == [out]


def test_what_somebody_put_there_is_kept_even_if_it_cannot_be_put_back(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_exchange(monkeypatch)
    rename, renamed = os.rename, []

    def failing(source: str, target: str) -> None:
        renamed.append((source, target))
        if len(renamed) == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(StorageError, match="input/output error") as caught:
        replace(out, lambda: add_file(out))
    assert caught.value.path == str(out)
    assert contents(out) == NEW
    assert [path.read_text() for path in out.parent.rglob("mine")] == ["mine"]


def test_directory_that_is_not_there_is_not_found_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        replace(tmp_path / "out")
    assert caught.value.path == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_disk_without_room_beside_it_is_a_storage_error(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(StorageError, match="free some space") as caught:
        replace(out)
    assert str(caught.value.path).startswith(f"{out}.partial-")
    assert contents(out) == OLD


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_new_files_have_the_umasks_modes(umask: int, mode: int, out: Path) -> None:
    before = os.umask(umask)
    try:
        replace(out)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {mode}


def test_no_more_than_three_of_the_other_files_are_named_in_their_order(out: Path) -> None:
    for name in ("d", "b", "a", "c"):
        (out / name).touch()
    with pytest.raises(OutputExists) as caught:
        replace(out)
    assert caught.value.found == "a, b, c"


def test_no_descriptor_is_left_open_whatever_happens(out: Path) -> None:
    before = os.listdir("/proc/self/fd")
    replace(out)
    with pytest.raises(KeyboardInterrupt):
        replace(out, fail)
    with pytest.raises(OutputExists):
        replace(out, lambda: add_file(out))
    assert os.listdir("/proc/self/fd") == before


def test_reader_always_finds_one_of_the_two(tmp_path: Path) -> None:
    """Replaced again and again by another process, where the kernel can exchange."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "one").write_bytes(b"0")
    program = """
import sys
from registry.disk import Replacement
for number in range(200):
    with Replacement(sys.argv[1], ["one"]) as output:
        output.files.write("one", [str(number).encode()])
        output.publish()
"""
    seen = set()
    with subprocess.Popen([sys.executable, "-c", program, str(out)]) as process:
        while process.poll() is None:
            directory = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
            assert os.fstat(directory).st_ino
            seen.add(os.fstat(directory).st_ino)
            os.close(directory)
    assert process.returncode == 0
    assert len(seen) > 1
    assert contents(out) == {"one": b"199"}
