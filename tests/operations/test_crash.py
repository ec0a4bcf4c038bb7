"""The command killed at every step that changes the disk, and the disk failing at every step: real processes under
strace. Whatever happens, a reader finds whole adapters only, and running the command again gives what was wanted.

A process is killed as it enters its n-th call, so the state checked is the one after call n - 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from registry import Digest, IntegrityError, NotFound, Registry, export_checkpoint
from registry.core.records import ALIAS, EXPORT
from registry.store import LocalStore
from tests.support.process import CommandLine
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.strace import inject, killer, needs_strace, trace
from tests.support.trees import contents as files_in
from tests.support.trees import flip

SAMPLED = {"pwrite64": 6}  # SQLite's: one kill in so many calls
CHANGES = ("mkdir", "write", "rename", "rmdir", "unlink", "fdatasync", "ftruncate", "pwrite64")
READ = "/^preadv2?$"  # which of them it is, is libc's choice


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints with the same LoRA."""
    state = lora_state(modules=MODULES[:1])
    first, second = (tmp_path_factory.mktemp("runs") / name for name in ("first", "second"))
    saved = contents(state)
    return write_checkpoint(first, saved), write_checkpoint(second, saved | {"step": 13})


@pytest.fixture(scope="module")
def wanted(twins: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """The digest that both give, and the files that an adapter consists of."""
    registry = Registry(tmp_path_factory.mktemp("wanted") / "home")
    digest = str(registry.add(twins[0]).digest)
    return digest, files_in(Path(registry.path(digest)))


def killed(call: str, prepare: Callable[[], tuple[str | Path, ...]]) -> Iterator[int]:
    """Run the command that `prepare` makes ready, killed in its first such call, in its second, until it is done."""
    with killer(call) as run:
        for number in count(1, SAMPLED.get(call, 1)):
            code = run(number, *prepare())
            assert code in (0, -9), (call, number, code)
            yield number
            if code == 0:
                assert number > 1, f"no {call} was made"
                return


def assert_recovers(home: Path, checkpoint: Path, digest: str, exports: int = 1) -> None:
    """Every adapter to be seen is whole, and is listed; adding again gives `digest`, in both, and cleans up."""
    store = LocalStore(str(home))
    for seen in store.digests():
        assert Registry(home).path(str(seen))
    registry = Registry(home)
    assert [each.digest for each in registry.newest(9)] == list(store.digests()), "whatever the index had not heard of"
    assert str(registry.add(checkpoint).digest) == digest
    assert registry.path(digest)
    assert [str(found) for found in store.digests()] == [digest] == [str(each.digest) for each in registry.newest(9)]
    (adapter,) = registry.newest(9)
    assert {export.record for export in adapter.exports} == {
        each.digest for each in store.records(adapter.digest, EXPORT)
    }
    assert len(adapter.exports) == exports
    assert store.unsettled() == []
    assert not files_in(home / "staging")
    with store.stage():
        assert len(os.listdir(home / "staging")) == 1, "what a dead process left is swept"


@needs_strace
@pytest.mark.parametrize("call", CHANGES)
def test_add_killed_at_any_step_leaves_nothing_or_a_whole_adapter_and_can_be_repeated(
    call: str, tmp_path: Path, twins: tuple[Path, Path], wanted: tuple[str, dict[str, bytes]]
) -> None:
    home = tmp_path / "home"
    for _ in killed(call, lambda: ("add", twins[0], "--home", home)):
        assert_recovers(home, twins[0], wanted[0])
        shutil.rmtree(home)


@needs_strace
def test_second_export_killed_at_any_step_leaves_the_first_whole(
    tmp_path: Path, twins: tuple[Path, Path], wanted: tuple[str, dict[str, bytes]]
) -> None:
    unrecorded = CommandLine(tmp_path / "unrecorded")
    assert inject(unrecorded, "add", twins[0], fault="rename:signal=KILL:when=3").code == -9
    assert not files_in(unrecorded.home / "records"), "the first was killed between adapter and record"
    assert files_in(unrecorded.home / "adapters")

    home = tmp_path / "home"

    def prepare() -> tuple[str | Path, ...]:
        shutil.copytree(unrecorded.home, home)
        return ("add", twins[1], "--home", home)

    for _ in killed("rename", prepare):
        assert_recovers(home, twins[1], wanted[0], exports=2)
        shutil.rmtree(home)


@needs_strace
@pytest.mark.parametrize("call", ["rename", "unlink", "fdatasync", "pwrite64"])
def test_add_to_a_filled_registry_killed_at_any_step_is_told_whole_by_the_next_question(
    call: str, tmp_path: Path, twins: tuple[Path, Path], wanted: tuple[str, dict[str, bytes]]
) -> None:
    """Nothing but what was announced can tell: the index is not empty, and the store is not walked."""
    filled, home, stored = Registry(tmp_path / "filled"), tmp_path / "home", set()
    first = filled.add(write_checkpoint(tmp_path / "other", contents(lora_state(seed=8)))).digest

    def prepare() -> tuple[str | Path, ...]:
        shutil.copytree(filled.home, home)
        return ("add", twins[0], "--alias", "best", "--home", home)

    for _ in killed(call, prepare):
        notes: list[str] = []
        registry, store = Registry(home, note=notes.append), LocalStore(str(home))
        listed = {str(each.digest): each for each in registry.newest(9)}
        assert listed.keys() == {str(each) for each in store.digests()}
        for digest, adapter in listed.items():
            told = {record.digest for record in store.records(adapter.digest, EXPORT)}
            assert {export.record for export in adapter.exports} == told != set(), digest
        assert [move.after for move in registry.aliases()] == [
            Digest(record.predicate["to"]) for each in store.digests() for record in store.records(each, ALIAS)
        ]
        assert notes == []
        stored |= listed.keys()
        assert str(registry.add(twins[0]).digest) == wanted[0]
        assert store.unsettled() == []
        assert len(registry.newest(9)) == 2
        shutil.rmtree(home)
    assert stored == {str(first), wanted[0]}


@needs_strace
def test_repair_killed_at_any_step_never_hands_out_the_damaged_copy(tmp_path: Path, twins: tuple[Path, Path]) -> None:
    sound, home = Registry(tmp_path / "sound"), tmp_path / "home"
    digest = str(sound.add(twins[0]).digest)

    def prepare() -> tuple[str | Path, ...]:
        shutil.copytree(sound.home, home)
        flip(Path(Registry(home).path(digest)) / "adapter_model.safetensors")
        return ("add", twins[0], "--home", home)

    for _ in killed("rename", prepare):
        try:
            assert files_in(Path(Registry(home).path(digest))) == files_in(Path(sound.path(digest)))
        except (IntegrityError, NotFound):
            Registry(home).add(twins[0])
        assert_recovers(home, twins[0], digest)
        shutil.rmtree(home)


@needs_strace
@pytest.mark.parametrize(
    ("command", "call"),
    [("get", "mkdir"), ("get", "write"), ("get", "rename"), ("export", "write"), ("export", "rename")],
)
def test_output_killed_at_any_step_is_missing_empty_or_whole_and_can_be_repeated(
    command: str, call: str, tmp_path: Path, twins: tuple[Path, Path], wanted: tuple[str, dict[str, bytes]]
) -> None:
    out, registry = tmp_path / "out", Registry(tmp_path / "home")
    registry.add(twins[0])
    arguments = {
        "get": ("get", wanted[0], "--to", out, "--home", registry.home),
        "export": ("export", twins[0], "--out", out),
    }
    again = {"get": lambda: registry.get(wanted[0], out), "export": lambda: export_checkpoint(twins[0], out)}
    for _ in killed(call, lambda: arguments[command]):
        if not (out.exists() and files_in(out)):
            if out.exists():
                out.rmdir()  # the reservation, which the message of the next attempt explains
            again[command]()
        assert files_in(out).keys() == wanted[1].keys()
        assert files_in(out)["adapter_model.safetensors"] == wanted[1]["adapter_model.safetensors"]
        assert not out.with_suffix(".partial").exists()
        shutil.rmtree(out)


FAULTS = (  # the call, the error, and from which call of this name on
    ("mkdir", "ENOSPC", "1+"),
    ("mkdir", "EROFS", "3+"),
    ("mkdir", "EACCES", "4+"),
    ("mkdir", "ENOSPC", "6+"),
    ("write", "ENOSPC", "1"),
    ("write", "EDQUOT", "3"),
    ("write", "EIO", "6"),
    ("fsync", "EIO", "1"),
    ("fsync", "ENOSPC", "3"),
    ("fsync", "EIO", "6+"),
    ("rename", "ENOSPC", "1"),
    ("rename", "EIO", "2"),
)
INDEX_FAULTS = (("pwrite64", "ENOSPC", "1+"), ("pwrite64", "EIO", "40+"), ("fdatasync", "EIO", "5+"))


@needs_strace
@pytest.mark.parametrize(("call", "error", "when"), [*FAULTS, *INDEX_FAULTS])
def test_add_on_a_failing_disk_exits_7_names_the_path_and_can_be_repeated(
    call: str, error: str, when: str, cli: CommandLine, twins: tuple[Path, Path], wanted: tuple[str, dict[str, bytes]]
) -> None:
    done = inject(cli, "add", twins[0], fault=f"{call}:error={error}:when={when}")
    assert done.code == 7, done
    assert done.out == ""
    assert str(cli.home) in done.err or f"{cli.home.parent}: " in done.err
    assert "Traceback" not in done.err
    assert not (cli.home / "staging").exists() or not os.listdir(cli.home / "staging")
    assert_recovers(cli.home, twins[0], wanted[0])


@needs_strace
@pytest.mark.parametrize("call", ["mkdir", "write", "rename"])
@pytest.mark.parametrize("command", ["get", "export"])
def test_output_on_a_failing_disk_exits_7_and_publishes_nothing(
    command: str, call: str, tmp_path: Path, cli: CommandLine, twins: tuple[Path, Path]
) -> None:
    out = tmp_path / "out"
    digest = Registry(cli.home).add(twins[0]).digest
    arguments = {"get": ("get", str(digest), "--to", out), "export": ("export", twins[0], "--out", out)}[command]
    done = inject(cli, *arguments, fault=f"{call}:error=ENOSPC:when=1")
    assert (done.code, done.out) == (7, "")
    assert str(out) in done.err
    assert not out.exists()
    cli.ok(*arguments)


@needs_strace
@pytest.mark.parametrize("number", [1, 4])
def test_unreadable_checkpoint_exits_7_and_names_the_file(
    number: int, cli: CommandLine, twins: tuple[Path, Path]
) -> None:
    file = twins[0] / "trainer.pt"
    done = inject(cli, "add", twins[0], fault=f"{READ}:error=EIO:when={number}", path=file)
    assert (done.code, done.out) == (7, "")
    assert str(file) in done.err
    assert not cli.home.exists()


@needs_strace
@pytest.mark.parametrize("command", ["get", "path", "add"])
def test_unreadable_stored_file_exits_7_and_names_it(
    command: str, cli: CommandLine, twins: tuple[Path, Path], tmp_path: Path
) -> None:
    registry = Registry(cli.home)
    digest = str(registry.add(twins[0]).digest)
    file = Path(registry.path(digest)) / "adapter_model.safetensors"
    arguments = {"get": ("get", digest, "--to", tmp_path / "out"), "path": ("path", digest), "add": ("add", twins[0])}
    done = inject(cli, *arguments[command], fault="read:error=EIO:when=1+", path=file)
    assert (done.code, done.out) == (7, "")
    assert str(file) in done.err
    assert not (tmp_path / "out").exists()


@needs_strace
def test_write_that_the_disk_lost_is_found_before_publication(cli: CommandLine, twins: tuple[Path, Path]) -> None:
    done = inject(cli, "add", twins[0], fault="write:retval=256:when=2")
    assert (done.code, done.out) == (5, ""), "the kernel said that 256 bytes were written, and wrote none"
    assert not list(LocalStore(str(cli.home)).digests())


@needs_strace
@pytest.mark.parametrize("step", ["mkdir:1", "mkdir:4", "write:2", "fsync:3", "rename:1", "rename:2"])
def test_interrupt_exits_130_and_leaves_nothing_half_published(
    step: str, cli: CommandLine, twins: tuple[Path, Path], wanted: tuple[str, dict[str, bytes]]
) -> None:
    call, number = step.split(":")
    done = inject(cli, "add", twins[0], fault=f"{call}:signal=INT:when={number}")
    assert (done.code, done.out) == (130, ""), done
    assert "Traceback" not in done.err
    assert not (cli.home / "staging").exists() or not os.listdir(cli.home / "staging")
    assert_recovers(cli.home, twins[0], wanted[0])


@needs_strace
def test_interrupt_while_reading_leaves_no_registry(cli: CommandLine, twins: tuple[Path, Path]) -> None:
    done = inject(cli, "add", twins[0], fault=f"{READ}:signal=INT:when=3", path=twins[0] / "trainer.pt")
    assert (done.code, done.out) == (130, "")
    assert not cli.home.exists()


@needs_strace
@pytest.mark.parametrize("directories_of_one_who_was_killed", [False, True])
def test_bytes_reach_the_disk_before_their_name_does_and_the_index_comes_last(
    cli: CommandLine,
    twins: tuple[Path, Path],
    wanted: tuple[str, dict[str, bytes]],
    tmp_path: Path,
    directories_of_one_who_was_killed: bool,
) -> None:
    cli.ok("db", "upgrade")
    if directories_of_one_who_was_killed:
        for place in ("adapters", "records"):
            (cli.home / place / wanted[0].removeprefix("sha256:")[:2]).mkdir(parents=True)
    calls = trace(cli, "add", twins[0], log=tmp_path / "log", calls=("write", "fsync", "rename", "pwrite64"))
    digest = wanted[0].removeprefix("sha256:")
    home, final = str(cli.home), f"{cli.home}/adapters/{digest[:2]}/{digest}"

    def last(name: str, what: str, before: int = len(calls)) -> int:
        places = [at for at, call in enumerate(calls[:before]) if call[0] == name and what in call[1]]
        assert places, f"no {name} of {what}"
        return places[-1]

    published = last("rename", f'"{final}"')
    stage = calls[published][1].split('"')[1]
    synced = last("fsync", f"<{stage}>", published)
    for name in wanted[1]:
        assert last("write", f"{stage}/{name}>") < last("fsync", f"{stage}/{name}>") < synced < published
    listed = last("fsync", f"<{os.path.dirname(final)}>")
    recorded = last("rename", f"{home}/records/")
    record = calls[recorded][1].split('"')[1]
    assert last("write", f"<{record}>") < last("fsync", f"<{record}>") < recorded
    record_listed = last("fsync", f"<{home}/records/{digest[:2]}/{digest}>")
    rows = f"<{home}/index.sqlite-wal>"
    indexed = next(at for at, call in enumerate(calls) if call[0] == "pwrite64" and rows in call[1])
    assert published < listed < recorded < record_listed < indexed
    for made in ("", "/adapters", "/records", f"/records/{digest[:2]}"):
        assert last("fsync", f"<{home}{made}>", indexed), "directories are linked durably too, whoever made them"


@needs_strace
def test_checkpoint_is_opened_once_and_every_byte_of_it_streamed_once(cli: CommandLine, tmp_path: Path) -> None:
    optimizer = {"optimizer": torch.zeros(1 << 20)}
    checkpoint = write_checkpoint(tmp_path / "run", contents(lora_state()) | optimizer)
    file, size = checkpoint / "trainer.pt", (checkpoint / "trainer.pt").stat().st_size
    calls = trace(cli, "add", checkpoint, log=tmp_path / "log", calls=("openat", "lseek", "mmap", "read", READ))
    assert sum(call == "openat" and f'"{file}"' in arguments for call, arguments in calls) == 1
    touched = [(call, arguments) for call, arguments in calls if f"<{file}>" in arguments]
    assert {call for call, _ in touched} <= {"openat", "preadv", "preadv2"}
    ended = [re.search(r" = (\d+)$", arguments) for call, arguments in calls if call.startswith("preadv")]
    streamed = sum(int(result[1]) for result in ended if result)
    assert size <= streamed < 1.05 * size, "once, beside the small parts to plan with"


def test_full_disk_publishes_nothing_and_the_rerun_after_freeing_succeeds(
    tmp_path: Path, twins: tuple[Path, Path], wanted: tuple[str, dict[str, bytes]]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let tests mount a tmpfs")
    try:
        (disk / "filler").write_bytes(bytes((2 << 20) - 4096))
        cli = CommandLine(disk / "home")
        done = cli("add", twins[0])
        assert (done.code, done.out) == (7, "")
        assert str(disk) in done.err
        assert "full" in done.err
        assert not (cli.home / "adapters").exists()
        (disk / "filler").unlink()
        assert cli.ok("add", twins[0]) == wanted[0]
        assert_recovers(cli.home, twins[0], wanted[0])
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
