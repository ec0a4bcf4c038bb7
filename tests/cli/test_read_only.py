"""A registry that may only be read: it answers, and not one byte, name or time in it changes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import Registry
from registry.core import records
from registry.store import LocalStore
from tests.cli.conftest import Shelf, shelf_for_all
from tests.support.answers import lose_index
from tests.support.mounts import needs_mounts, run_mounted
from tests.support.process import CommandLine, Finished
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.strace import needs_strace, trace
from tests.support.trees import snapshot
from tests.support.users import ONE, OTHER, common_ground, give, needs_root
from tests.support.values import digest_of

QUESTIONS = (
    ("path", "prod"),
    ("show", "run@3"),
    ("list",),
    ("alias", "list"),
    ("alias", "history", "prod"),
    ("db", "current"),
)


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    """One adapter with an alias, where every user may look."""
    with shelf_for_all() as made:
        yield made


@pytest.fixture
def mine(shelf: Shelf) -> Iterator[CommandLine]:
    """A copy of it that belongs to a user, to be taken their rights."""
    with common_ground() as ground:
        shutil.copytree(shelf.cli.home, ground / "home")
        give(ground / "home", ONE)
        (ground / "out").mkdir()
        give(ground / "out", ONE, mode=0o777)
        yield CommandLine(ground / "home")


def take_rights(path: Path) -> None:
    subprocess.run(["chmod", "-R", "a-w", path], check=True)


def writers(shelf: Shelf, new: Path) -> tuple[tuple[str | Path, ...], ...]:
    return (
        ("add", new),
        ("add", new.parents[1]),
        ("watch", new.parents[1], "--until-idle", "0"),
        ("add", shelf.checkpoint, "--alias", "best"),
        ("alias", "set", "best", shelf.hex),
        ("alias", "remove", "prod"),
        ("reindex",),
        ("db", "upgrade"),
    )


def assert_refused(done: Finished) -> None:
    assert (done.code, done.out) == (7, ""), done
    assert re.fullmatch(r"aorlta-reg: [^\n]*read-only[^\n]*\n", done.err), done


def test_user_without_write_permission_gets_every_answer_and_changes_nothing(mine: CommandLine, shelf: Shelf) -> None:
    take_rights(mine.home)
    new = write_checkpoint(mine.home.parent / "new", contents(lora_state(seed=3)))
    before = snapshot(mine.home)
    out = mine.home.parent / "out" / "copy"
    view = ("view", mine.home.parent / "out" / "view", "--run", "run", "--for", "vllm")
    viewed, *asked = ONE.run(mine, view, ("get", shelf.hex[:8], "--to", out), *QUESTIONS, *writers(shelf, new))
    assert (viewed.code, viewed.out) == (0, f"{shelf.hex}\n"), viewed
    answered, refused = asked[: 1 + len(QUESTIONS)], asked[1 + len(QUESTIONS) :]
    assert [(done.code, done.err) for done in answered] == [(0, "")] * len(answered), answered
    assert [done.out for done in answered[3:]] == [shelf.cli(*question).out for question in QUESTIONS[2:]]
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in shelf.directory.iterdir())
    for done in refused:
        assert_refused(done)
    assert snapshot(mine.home) == before


@needs_root
def test_registry_of_another_user_is_read_while_they_may_write(mine: CommandLine, shelf: Shelf) -> None:
    """Its directories are open to all eyes, as a trainer's are to those who score; stored files are another's."""
    before = snapshot(mine.home)
    asked = OTHER.run(mine, *QUESTIONS, ("alias", "set", "best", shelf.hex))
    assert [(done.code, done.err) for done in asked[:-1]] == [(0, "")] * len(QUESTIONS), asked
    assert_refused(asked[-1])
    assert snapshot(mine.home) == before


def test_index_alone_without_write_permission_takes_nothing_into_the_store(mine: CommandLine, shelf: Shelf) -> None:
    (mine.home / "index.sqlite").chmod(0o444)
    new = write_checkpoint(mine.home.parent / "new", contents(lora_state(seed=3)))
    before = snapshot(mine.home)
    *refused, listed = ONE.run(mine, *writers(shelf, new)[:6], ("list",))
    for done in refused:
        assert_refused(done)
    assert listed.code == 0
    assert snapshot(mine.home) == before


def test_what_cannot_be_mended_is_told_and_how(mine: CommandLine, shelf: Shelf) -> None:
    LocalStore(str(mine.home)).announce(records.make(records.EXPORT, digest_of("other"), {"exported_at": "2999"}))
    give(mine.home, ONE)
    take_rights(mine.home)
    before = snapshot(mine.home)
    (listed,) = ONE.run(mine, ("list",))
    assert listed.code == 0
    assert shelf.hex[:12] in listed.out
    assert re.fullmatch(r"the index may lack 1 records[^\n]*read-only here[^\n]*list`, adds them\n", listed.err)
    assert snapshot(mine.home) == before
    assert Registry(mine.home).newest(9)


def test_missing_index_is_said_plainly_and_digests_need_none(mine: CommandLine, shelf: Shelf) -> None:
    lose_index(mine.home)
    take_rights(mine.home)
    before = snapshot(mine.home)
    out = mine.home.parent / "out" / "copy"
    got, path, *refused = ONE.run(
        mine, ("get", shelf.hex, "--to", out), ("path", shelf.hex[:9]), ("list",), QUESTIONS[1]
    )
    assert (got.code, path.code) == (0, 0)
    for done in refused:
        assert (done.code, done.out) == (7, "")
        assert re.fullmatch(r"aorlta-reg: the index is missing[^\n]*`aorlta-reg reindex` where[^\n]*\n", done.err), done
    assert snapshot(mine.home) == before


def test_empty_registry_that_is_read_only_is_empty(mine: CommandLine) -> None:
    shutil.rmtree(mine.home)
    mine.home.mkdir()
    give(mine.home, ONE, mode=0o555)
    listed, aliases, current, path = ONE.run(mine, ("list",), ("alias", "list"), ("db", "current"), ("path", "prod"))
    assert [done.code for done in (listed, aliases, current, path)] == [0, 0, 0, 3]
    assert list(mine.home.iterdir()) == []


MOUNT = "mount --bind '{0}' '{0}' && mount -o remount,ro,bind '{0}'"


@needs_mounts
def test_read_only_mount_gives_every_answer_and_takes_nothing(mine: CommandLine, shelf: Shelf, tmp_path: Path) -> None:
    new = write_checkpoint(tmp_path / "new", contents(lora_state(seed=3)))
    before = snapshot(mine.home)
    for question in (("get", shelf.hex[:8], "--to", str(tmp_path / "copy")), *QUESTIONS):
        done = run_mounted(mine, MOUNT.format(mine.home), f"exec $REG {' '.join(question)}")
        assert (done.code, done.err) == (0, ""), (question, done)
    for command in writers(shelf, new):
        assert_refused(run_mounted(mine, MOUNT.format(mine.home), f"exec $REG {' '.join(map(str, command))}"))
    assert snapshot(mine.home) == before


WRITING = ("openat", "open", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "unlink", "unlinkat")
WRITING += ("rmdir", "link", "linkat", "symlink", "symlinkat", "chmod", "fchmodat", "write", "pwrite64", "ftruncate")
WRITING += ("fchmod", "utimensat", "fsync", "fdatasync")


@needs_mounts
@needs_strace
@pytest.mark.parametrize("question", [*QUESTIONS, ("get", "prod", "--to")], ids=" ".join)
def test_kernel_is_not_even_asked_to_write(question: tuple[str, ...], mine: CommandLine, tmp_path: Path) -> None:
    """A disk mounted read-only, so that root is a reader too: no call that would write is tried there."""
    for step in (("--bind", mine.home, mine.home), ("-o", "remount,ro,bind", mine.home)):
        subprocess.run(["mount", *map(str, step)], check=True)
    try:
        more = (tmp_path / "copy",) if question[0] == "get" else ()
        calls = trace(mine, *question, *more, log=tmp_path / "log", calls=WRITING)
    finally:
        subprocess.run(["umount", "--lazy", mine.home], check=True)
    there = [(call, what) for call, what in calls if str(mine.home) in what]
    assert there, "it looked at the registry at least"
    for call, what in there:
        assert call in ("openat", "open"), (call, what)
        assert not re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND", what), (call, what)
