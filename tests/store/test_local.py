"""The store in a local directory: the contract, and what only a directory can do wrong."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, NotFound, RegistryError, StorageError
from registry.disk import directory_inside
from registry.store import LocalStore, local
from registry.store.staging import is_staging_name
from tests.store.contract import FILES, OTHER, A, B, StoreContract, publish
from tests.support.trees import contents, flip

WEEK = 7 * 24 * 3600


class LocalBackend:
    """A `Backend` that uses plain files where the layout says so."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = LocalStore(str(home))

    def plant(self, digest: Digest, files: Mapping[str, bytes]) -> None:
        directory = self.home / "adapters" / digest.hex[:2] / digest.hex
        directory.mkdir(parents=True)
        for name, data in files.items():
            (directory / name).write_bytes(data)

    def adapters(self) -> dict[Digest, dict[str, bytes]]:
        return {Digest(path.name): contents(path) for path in self.home.glob("adapters/*/*")}

    def plant_record(self, subject: Digest, name: str, data: bytes) -> None:
        directory = self.home / "records" / subject.hex[:2] / subject.hex
        directory.mkdir(parents=True)
        (directory / name).write_bytes(data)

    def damage_record(self, subject: Digest, name: str) -> None:
        flip(self.home / "records" / subject.hex[:2] / subject.hex / name)

    def records(self) -> dict[tuple[Digest, str], bytes]:
        return {(Digest(path.parent.name), path.name): path.read_bytes() for path in self.home.glob("records/*/*/*")}

    def litter(self) -> list[str]:
        known = {"adapters", "records", "pending", "staging", "quarantine"}
        found = [path.name for path in self.home.glob("*") if path.name not in known]
        return found + [path.name for path in self.home.glob("staging/*")]


@pytest.fixture
def backend(home: Path) -> LocalBackend:
    return LocalBackend(home)


class TestLocalStore(StoreContract):
    """The contract."""


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o444), (0o022, 0o444), (0o077, 0o400)])
def test_stored_files_are_read_only_within_the_umask(umask: int, mode: int, backend: LocalBackend) -> None:
    before = os.umask(umask)
    try:
        publish(backend.store, A)
    finally:
        os.umask(before)
    files = list(Path(backend.store.directory(A)).iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}
    assert len(files) == len(FILES)


def test_staging_is_in_the_store_whatever_tmpdir_says(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.stat("/dev/shm").st_dev == os.stat(backend.home.parent).st_dev:
        pytest.skip("no second file system at hand")
    monkeypatch.setenv("TMPDIR", "/dev/shm")
    with backend.store.stage() as stage:
        stage.files.write("weights.bin", [b"x"])
        (staged,) = (backend.home / "staging").glob("*/weights.bin")
        assert staged.read_bytes() == b"x"
        assert stage.publish(A)


def test_replaced_adapter_is_kept_as_evidence(backend: LocalBackend) -> None:
    backend.plant(A, OTHER)
    with backend.store.stage() as stage:
        stage.files.write("weights.bin", [b"sound"])
        stage.replace(A)
    (evidence,) = (backend.home / "quarantine").iterdir()
    assert evidence.name.startswith(A.hex)
    assert contents(evidence) == OTHER
    assert list(backend.store.digests()) == [A]


def test_replacing_what_another_process_has_just_moved_aside_publishes(backend: LocalBackend) -> None:
    with backend.store.stage() as stage:
        stage.files.write("weights.bin", [b"sound"])
        stage.replace(A)
    assert backend.adapters() == {A: {"weights.bin": b"sound"}}


def test_of_two_removers_at_once_the_second_is_told_that_nothing_was_there(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(backend.store, A)
    rename, results = os.rename, []

    def outrun(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        results.append(LocalStore(str(backend.home)).remove(A))
        rename(source, target)

    monkeypatch.setattr(os, "rename", outrun)
    results.append(backend.store.remove(A))
    assert results == [True, False]
    assert (backend.adapters(), backend.litter()) == ({}, [])


def test_disk_without_room_for_staging_is_a_storage_error(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def full(path: str) -> None:
        if f"{backend.home}/staging/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(StorageError, match="free some space"):
        publish(backend.store, A)
    assert backend.adapters() == {}


def test_staging_that_cannot_be_looked_through_is_a_storage_error_that_names_it(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_directory: int) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(StorageError, match="input/output error") as caught:
        publish(backend.store, A)
    assert caught.value.path == str(backend.home / "staging")


def test_disk_that_fails_to_take_a_file_publishes_nothing_and_the_file_is_named(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("weights.bin"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with backend.store.stage() as stage:
        stage.files.write("weights.bin", [b"x"])
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(StorageError, match="input/output error") as caught:
            stage.publish(A)
    assert str(caught.value.path).endswith("/weights.bin")
    assert (backend.adapters(), backend.litter()) == ({}, [])


def test_link_in_the_place_of_an_adapters_records_is_told_or_raised(backend: LocalBackend, tmp_path: Path) -> None:
    place = backend.home / "records" / A.hex[:2] / A.hex
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path)
    told: list[RegistryError] = []
    assert backend.store.records(A, refused=told.append) == []
    assert [(type(each), each.path) for each in told] == [(IntegrityError, str(place))]
    with pytest.raises(IntegrityError, match="is a link"):
        backend.store.records(A)


def test_file_where_an_adapter_belongs_is_a_storage_error(backend: LocalBackend) -> None:
    path = Path(backend.store.directory(A))
    path.parent.mkdir(parents=True)
    path.write_text("not a directory")
    with pytest.raises(StorageError):
        publish(backend.store, A)
    assert path.read_text() == "not a directory"
    assert backend.litter() == []


def test_names_that_are_no_digests_are_no_adapters(backend: LocalBackend) -> None:
    backend.plant(A, FILES)
    shard = backend.home / "adapters" / A.hex[:2]
    for name in (".DS_Store", A.hex.upper(), f"{A.hex}.tmp", "lost+found"):
        (shard / name).mkdir()
    assert list(backend.store.digests()) == backend.store.find(A.hex[:2], 9) == [A]


STAGE_AND_WAIT = """
import sys
from registry.store import LocalStore
with LocalStore(sys.argv[1]).stage() as stage:
    stage.files.write("weights.bin", [b"x"])
    print("staged", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def stager(backend: LocalBackend) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of staging."""
    program = [sys.executable, "-c", STAGE_AND_WAIT, str(backend.home)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "staged\n"
        yield process
        process.kill()


def test_what_a_live_process_stages_is_left_alone(backend: LocalBackend, stager: subprocess.Popen[str]) -> None:
    (staged,) = (backend.home / "staging").iterdir()
    os.utime(staged, (0, 0))
    publish(backend.store, A)
    assert contents(staged) == {"weights.bin": b"x"}
    assert stager.poll() is None


def test_what_a_killed_process_staged_is_swept(backend: LocalBackend, stager: subprocess.Popen[str]) -> None:
    stager.kill()
    stager.wait()
    assert len(backend.litter()) == 1
    publish(backend.store, A)
    assert backend.litter() == []


@pytest.mark.parametrize(("age", "stays"), [(WEEK - 600, True), (WEEK + 600, False)])
def test_what_another_machine_stages_is_given_a_week(age: float, stays: bool, backend: LocalBackend) -> None:
    foreign = backend.home / "staging" / "0123456789abcdef~1~fedc"
    foreign.mkdir(parents=True)
    os.utime(foreign, (time.time() - age,) * 2)
    publish(backend.store, A)
    assert foreign.exists() == stays


def test_record_is_taken_up_to_the_length_that_is_read_back_and_no_longer(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, too_long = (records.make(records.EXPORT, A, {"text": "x" * length}) for length in (100, 101))
    monkeypatch.setattr(local, "MAX_RECORD", len(fits.data))
    backend.store.put_record(fits)
    with pytest.raises(StorageError, match="too large") as caught:
        backend.store.put_record(too_long)
    assert (caught.value.key, caught.value.found) == (too_long.name, len(too_long.data))
    assert [each.digest for each in backend.store.records(A)] == [fits.digest]
    assert list(backend.records()) == [(A, fits.name)]


def test_adapter_that_is_not_there_is_named_by_its_digest(backend: LocalBackend) -> None:
    backend.plant(B, FILES)
    with pytest.raises(NotFound, match="no such adapter") as caught:
        backend.store.open(A, "weights.bin")
    assert caught.value.key == str(A)


@pytest.mark.parametrize("act", [LocalStore.set_aside, LocalStore.remove])
def test_shard_that_became_a_link_keeps_its_adapters_from_being_moved(
    act: Callable[[LocalStore, Digest], object], backend: LocalBackend, tmp_path: Path
) -> None:
    backend.plant(A, FILES)
    shard = backend.home / "adapters" / A.hex[:2]
    shard.rename(tmp_path / "moved")
    shard.symlink_to(tmp_path / "moved")
    with pytest.raises(IntegrityError, match="is a link") as caught:
        act(backend.store, A)
    assert caught.value.path == str(shard)
    assert contents(tmp_path / "moved" / A.hex) == FILES
    assert backend.store.quarantined() == 0


def test_removing_from_a_store_that_there_is_not_makes_none(backend: LocalBackend) -> None:
    assert not backend.store.remove(A)
    assert not backend.home.exists()


RECORD = records.make(records.EXPORT, A, {"n": 1})
MOVES: dict[str, tuple[Callable[[LocalStore], object], str]] = {
    "publish": (lambda store: publish(store, B), f"adapters/{B.hex[:2]}/{B.hex}"),
    "remove": (lambda store: store.remove(A), f"adapters/{A.hex[:2]}/{A.hex}"),
    "set_aside": (lambda store: store.set_aside(A), f"quarantine/{A.hex}-"),
    "put_record": (lambda store: store.put_record(RECORD), f"pending/{RECORD.name}"),
    "settle": (lambda store: store.settle(RECORD), f"pending/{RECORD.name}"),
}


@pytest.mark.parametrize("name", MOVES)
def test_disk_that_fails_to_move_something_is_a_storage_error_that_names_it(
    name: str, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(backend.store, A)
    if name == "settle":
        backend.store.announce(RECORD)

    def failing(*_: str, **__: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "unlink" if name == "settle" else "rename", failing)
    act, path = MOVES[name]
    with pytest.raises(StorageError, match="input/output error") as caught:
        act(backend.store)
    monkeypatch.undo()
    assert str(caught.value.path).startswith(str(backend.home / path))
    assert backend.adapters() == {A: FILES}
    assert backend.records() == {}


def test_record_that_is_removed_between_listing_and_reading_is_passed_over(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.store.put_record(RECORD)
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda where: [f"export-{'0' * 64}.json", *listdir(where)])
    assert [each.digest for each in backend.store.records(A)] == [RECORD.digest]
    assert [each.digest for each in backend.store.unsettled()] == [RECORD.digest]


def test_records_that_cannot_be_listed_are_a_storage_error_that_names_their_directory(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.store.put_record(RECORD)

    def failing(_directory: int) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listdir", failing)
    for ask, place in ((backend.store.unsettled, "pending"), (partial(backend.store.records, A), "records")):
        with pytest.raises(StorageError, match="input/output error") as caught:
            ask()
        assert str(caught.value.path).startswith(str(backend.home / place))


def test_file_in_the_place_of_an_adapters_records_is_no_record_and_a_pipe_there_an_error(backend: LocalBackend) -> None:
    place = backend.home / "records" / A.hex[:2] / A.hex
    place.parent.mkdir(parents=True)
    place.touch()
    assert backend.store.records(A) == []
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(StorageError, match="not a directory"):
        backend.store.records(A)


def test_settling_what_was_never_announced_is_no_error(backend: LocalBackend) -> None:
    backend.store.settle(RECORD)
    assert not backend.home.exists()


def test_what_belongs_to_nothing_is_told_and_what_does_is_not(backend: LocalBackend) -> None:
    publish(backend.store, A)
    backend.store.put_record(RECORD)
    home, shard = backend.home, A.hex[:2]
    with backend.store.stage():
        assert list(backend.store.strays()) == []
        strays = [
            *(home / place / name for place in ("adapters", "records") for name in (".x", f"{shard}0", shard.upper())),
            *(home / place / shard / name for place in ("adapters", "records") for name in ("lost", A.hex[:63])),
            *(home / place / "00" / A.hex for place in ("adapters", "records")),
            home / "adapters" / shard / f"{shard}{'0' * 62}",
            home / "records" / shard / A.hex / "export",
            home / "pending" / "export",
            home / "staging" / "mine",
        ]
        for path in strays:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"")
        (home / "adapters" / shard / A.hex / "not a record").write_bytes(b"")
        assert sorted(backend.store.strays()) == sorted(map(str, strays))


def test_adapter_that_is_set_aside_is_counted_and_lies_where_it_is_said(backend: LocalBackend) -> None:
    kept = []
    for number in range(2):
        assert backend.store.quarantined() == number
        backend.plant(A, FILES)
        kept.append(backend.store.set_aside(A))
    assert backend.store.quarantined() == len({*kept}) == 2
    assert [contents(Path(each)) for each in kept] == [FILES, FILES]
    assert not backend.store.contains(A)


def leave(backend: LocalBackend, pid: str) -> Path:
    """What a process of this machine left in staging: old, and named as this process names its own."""
    with backend.store.stage() as stage:
        place, _, rest = Path(stage.files.directory).name.split("~")
    left = backend.home / "staging" / f"{place}~{pid}~{rest}"
    (left / "inner").mkdir(parents=True)
    os.utime(left, (0, 0))
    return left


@pytest.fixture
def dead() -> str:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(process.pid)


@pytest.mark.parametrize("answer", [PermissionError, OverflowError, None])
def test_what_a_process_staged_is_left_alone_unless_it_is_known_to_be_gone(
    answer: type[Exception] | None, dead: str, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = leave(backend, dead if answer is not OverflowError else "9" * 18)  # more than any process has
    if answer is PermissionError:  # it is there, and another user's

        def theirs(_pid: int, _signal: int) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", theirs)
    publish(backend.store, A)
    assert left.exists() == (answer is not None)


def test_where_the_kernel_does_not_tell_its_boot_the_hosts_name_tells_whose_staging_it_is(
    dead: str, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = leave(backend, dead)
    os.utime(elsewhere)
    readlink = os.readlink

    def untold(path: str) -> str:
        if path == "/proc/self/ns/pid":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", untold)
    here = leave(backend, dead)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    another = leave(backend, dead)
    os.utime(another)
    monkeypatch.undo()
    monkeypatch.setattr(os, "readlink", untold)
    publish(backend.store, A)
    assert [path.exists() for path in (elsewhere, here, another)] == [True, False, True]


def test_staging_that_its_owner_has_just_removed_is_no_error(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda where: [*listdir(where), "0123456789abcdef~1~fedc"])
    assert publish(backend.store, A)


def test_staging_directories_tell_machine_and_process_and_no_two_have_one_name(backend: LocalBackend) -> None:
    names = set()
    for _ in range(2):
        with backend.store.stage() as stage:
            name = Path(stage.files.directory).name
            names.add(name)
            assert is_staging_name(name)
            assert name.split("~")[1] == str(os.getpid())
    assert len(names) == 2
    for other in (f"{name}~0", f"x{name}", name.replace("~", "-"), name.upper(), f"{name}\n"):
        assert not is_staging_name(other)


def test_link_in_an_adapters_place_and_one_that_has_just_gone_are_no_strays(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Opening the one refuses it, and the other is nothing any more."""
    place = backend.home / "adapters" / A.hex[:2]
    place.mkdir(parents=True)
    (place / A.hex).symlink_to(tmp_path)
    listdir = os.listdir
    gone = f"{A.hex[:2]}{'0' * 62}"
    monkeypatch.setattr(os, "listdir", lambda where: [*listdir(where), *[gone] * (A.hex in listdir(where))])
    assert list(backend.store.strays()) == []
    assert backend.store.contains(A)


def test_no_descriptor_is_left_open_by_looking_adding_or_being_refused(backend: LocalBackend, tmp_path: Path) -> None:
    store, before = backend.store, os.listdir("/proc/self/fd")
    publish(store, A)
    store.put_record(RECORD)
    store.open(A, "weights.bin").close()
    assert [*store.names(A), *store.records(A), *store.unsettled()]
    assert list(store.strays()) == []
    (backend.home / "adapters" / B.hex[:2]).symlink_to(tmp_path)
    for name in ("missing", "pipe", "link"):
        if name == "pipe":
            os.mkfifo(Path(store.directory(A), name))
        if name == "link":
            Path(store.directory(A), name).symlink_to(tmp_path)
        with pytest.raises(RegistryError):
            store.open(A, name)
    with pytest.raises(IntegrityError):
        store.contains(B)
    assert os.listdir("/proc/self/fd") == before


def test_file_that_is_opened_or_missing_is_called_by_its_whole_path(backend: LocalBackend) -> None:
    backend.plant(A, FILES)
    directory = Path(backend.store.directory(A))
    with backend.store.open(A, "weights.bin") as file:
        assert file.name == str(directory / "weights.bin")
    with pytest.raises(NotFound) as caught:
        backend.store.open(A, "missing")
    assert caught.value.path == str(directory / "missing")


def test_link_to_nothing_in_an_adapters_place_is_there_and_refused(backend: LocalBackend) -> None:
    place = Path(backend.store.directory(A))
    place.parent.mkdir(parents=True)
    place.symlink_to("nowhere")
    assert backend.store.contains(A)
    with pytest.raises(IntegrityError, match="is a link") as caught:
        backend.store.open(A, "weights.bin")
    assert caught.value.path == str(place)


@pytest.mark.parametrize(
    ("call", "act"),
    [("mkdir", lambda store: store.make_shard(A)), ("listdir", lambda store: store.find(A.hex[:4], 1))],
)
def test_directory_that_the_disk_fails_to_make_or_list_is_named(
    call: str, act: Callable[[LocalStore], object], backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, shard = getattr(os, call), backend.home / "adapters" / A.hex[:2]
    (shard if call == "listdir" else shard.parent).mkdir(parents=True)

    def failing(where: str | int) -> object:
        path = where if isinstance(where, str) else os.readlink(f"/proc/self/fd/{where}")
        if path == str(shard):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(where)

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StorageError, match="input/output error") as caught:
        act(backend.store)
    assert caught.value.path == str(shard)


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_what_is_no_directory_in_a_shards_place_is_named(make: Callable[[Path], None], backend: LocalBackend) -> None:
    shard = backend.home / "adapters" / A.hex[:2]
    shard.parent.mkdir(parents=True)
    make(shard)
    with pytest.raises(StorageError, match="not a directory") as caught:
        backend.store.make_shard(A)
    assert caught.value.path == str(shard)


def test_directory_that_is_missing_on_the_way_is_named(home: Path) -> None:
    (home / "one").mkdir(parents=True)
    with pytest.raises(NotFound) as caught, directory_inside(str(home), "one", "two", "three"):
        pass
    assert caught.value.path == str(home / "one" / "two")
