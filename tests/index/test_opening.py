"""How the index's file is opened: its journal, its mode, what it may not be, and readers that write nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.core.errors import IndexDamaged, IndexVersion, StorageError
from registry.index import Database, Index
from registry.index.opening import open_for_writing
from tests.cli.conftest import Shelf
from tests.support.mounts import as_network, needs_mounts, run_mounted
from tests.support.process import CommandLine
from tests.support.strace import inject, needs_strace
from tests.support.trees import contents, snapshot

LOG, ROLLBACK = b"\x02\x02", b"\x01\x01"
NETWORK = "network file system (nfs4)"


def journal(home: Path) -> bytes:
    """Bytes 18 and 19 of the database file, which say it: https://www.sqlite.org/fileformat.html."""
    return (home / "index.sqlite").read_bytes()[18:20]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    from tests.support.runs import write_checkpoint

    root = tmp_path_factory.mktemp("shelf")
    checkpoint = write_checkpoint(root / "run")
    cli = CommandLine(root / "home")  # processes that end, so that the index is at rest
    digest = cli.ok("add", checkpoint, "--alias", "prod").removeprefix("sha256:")
    return Shelf(cli, checkpoint, digest)


@pytest.fixture
def mine(shelf: Shelf, tmp_path: Path) -> CommandLine:
    shutil.copytree(shelf.cli.home, tmp_path / "mine")
    return CommandLine(tmp_path / "mine")


def test_new_index_on_a_local_disk_has_a_write_ahead_log(shelf: Shelf) -> None:
    assert journal(shelf.cli.home) == LOG


@needs_mounts
def test_new_index_on_a_network_has_a_rollback_journal_and_says_so_once(
    cli: CommandLine, shelf: Shelf, tmp_path: Path
) -> None:
    mounts = as_network(tmp_path)
    added = run_mounted(cli, mounts, f"exec $REG add {shelf.checkpoint}")
    assert (added.code, added.out) == (0, f"sha256:{shelf.hex}\n"), added.err
    assert added.err.count(NETWORK) == 1
    assert journal(cli.home) == ROLLBACK
    again = run_mounted(cli, mounts, "exec $REG list")
    assert (again.code, again.err) == (0, "")
    assert shelf.hex[:12] in again.out
    assert cli("alias", "set", "best", shelf.hex).code == 0, "where it is local, as on the server"
    assert journal(cli.home) == ROLLBACK, "the clients would not bear a log"


@needs_mounts
def test_index_with_a_log_that_came_to_a_network_loses_the_log_and_nothing_else(
    mine: CommandLine, shelf: Shelf, tmp_path: Path
) -> None:
    assert journal(mine.home) == LOG
    done = run_mounted(mine, as_network(tmp_path), "exec $REG path prod")
    assert (done.code, done.out) == (0, str(mine.home / "adapters" / shelf.hex[:2] / shelf.hex) + "\n")
    assert done.err.count(NETWORK) == 1
    assert journal(mine.home) == ROLLBACK
    assert not list(mine.home.glob("index.sqlite-*"))


LEAVE_LOG = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE left_behind (number)")
connection.commit()
os._exit(0)
"""


def leave_log(home: Path) -> None:
    """What a killed writer leaves: a log whose content is not in the database yet."""
    subprocess.run([sys.executable, "-c", LEAVE_LOG, str(home / "index.sqlite")], check=True)
    assert (home / "index.sqlite-wal").stat().st_size > 0


@needs_mounts
def test_what_a_killed_writer_left_in_a_log_is_kept_when_the_log_goes(mine: CommandLine, tmp_path: Path) -> None:
    leave_log(mine.home)
    assert run_mounted(mine, as_network(tmp_path), "exec $REG list").code == 0
    assert journal(mine.home) == ROLLBACK
    with sqlite3.connect(mine.home / "index.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM left_behind").fetchone() == (0,)


@needs_strace
@pytest.mark.parametrize("fault", ["openat:error=EACCES", "openat:error=EINVAL", "openat:error=ENOLCK"])
def test_log_that_the_file_system_refuses_is_done_without(fault: str, cli: CommandLine, shelf: Shelf) -> None:
    added = inject(cli, "add", shelf.checkpoint, fault=fault, path=cli.home / "index.sqlite-shm")
    assert (added.code, added.out) == (0, f"sha256:{shelf.hex}\n"), added.err
    assert "bears no write-ahead log" in added.err
    assert journal(cli.home) == ROLLBACK
    listed = inject(cli, "list", fault=fault, path=cli.home / "index.sqlite-shm")
    assert (listed.code, listed.err) == (0, "")


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o666), (0o002, 0o664), (0o027, 0o640), (0o077, 0o600)])
def test_index_and_the_files_beside_it_have_the_mode_that_the_umask_gives(
    umask: int, mode: int, database: Path
) -> None:
    before = os.umask(umask)
    try:
        connection = open_for_writing(str(database), pytest.fail)
        connection.execute("CREATE TABLE t (n)")
        files = list(database.parent.glob("index.sqlite*"))
        assert {path.stat().st_mode & 0o777 for path in files} == {mode}
        assert len(files) == 3, "the database, its log, and the log's index"
        connection.close()
    finally:
        os.umask(before)


def make_closed(database: Path) -> None:
    """An index that no connection is left to, which would write to it when it goes."""
    made = Database(str(database))
    made.upgrade()
    made._engine.dispose()


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, "link", "dangling link"])
def test_link_or_no_file_in_an_index_is_refused_without_waiting_and_left_alone(
    end: str, make: Callable[[Path], None] | str, database: Path, tmp_path: Path
) -> None:
    make_closed(database)
    planted, elsewhere = Path(f"{database}{end}"), tmp_path / "elsewhere"
    planted.unlink(missing_ok=True)
    if callable(make):
        make(planted)
    else:
        planted.symlink_to(elsewhere)
        if make == "link":
            shutil.copy(database, elsewhere) if end else make_closed(elsewhere)
    before = snapshot(tmp_path)
    for read_only in (False, True):
        with pytest.raises(IndexDamaged) as caught:
            Index(Database(str(database), read_only=read_only)).newest(1)
        assert caught.value.path == str(planted)
    assert snapshot(tmp_path) == before


def test_link_that_is_set_aside_by_reindex_is_not_followed(mine: CommandLine, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.sqlite"
    (mine.home / "index.sqlite").rename(elsewhere)
    (mine.home / "index.sqlite").symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert mine("list").code == 7
    done = mine("reindex")
    assert done.code == 0, done.err
    assert not (mine.home / "index.sqlite").is_symlink()
    assert mine.ok("path", "prod")
    assert elsewhere.read_bytes() == before


@pytest.fixture
def reader(mine: CommandLine) -> Index:
    return Index(Database(str(mine.home / "index.sqlite"), read_only=True))


def test_reader_that_writes_nothing_answers_from_an_index_at_rest(reader: Index, mine: CommandLine) -> None:
    before = snapshot(mine.home)
    assert [alias.name for alias in reader.aliases()] == ["prod"]
    assert len(reader.newest(9)) == 1
    assert snapshot(mine.home) == before


SET_ALIASES = """
import sys
from registry import Registry
registry = Registry(sys.argv[1])
for name in sys.stdin:
    registry.set_alias(name.strip(), sys.argv[2])
    print("set", flush=True)
"""


def test_reader_that_writes_nothing_sees_what_a_writer_at_work_has_committed(
    reader: Index, mine: CommandLine, shelf: Shelf
) -> None:
    """The writer's log is not in the database yet."""
    program = [sys.executable, "-c", SET_ALIASES, str(mine.home), shelf.hex]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number in (2, 3, 4):
            print(f"name{number}", file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "set\n"
            assert (mine.home / "index.sqlite-wal").stat().st_size
            before = snapshot(mine.home)
            assert len(reader.aliases()) == number
            assert snapshot(mine.home) == before
        writer.stdin.close()
    assert len(reader.aliases()) == 4


def test_reader_that_writes_nothing_sees_what_was_written_between_two_questions(
    reader: Index, mine: CommandLine, shelf: Shelf
) -> None:
    assert len(reader.aliases()) == 1
    mine.ok("alias", "set", "best", shelf.hex)
    assert len(reader.aliases()) == 2


def test_reader_whose_index_is_changed_under_it_does_not_answer(mine: CommandLine, shelf: Shelf) -> None:
    database = Database(str(mine.home / "index.sqlite"), read_only=True)
    with pytest.raises(StorageError, match="changed while it was read"), database.reading():
        mine.ok("alias", "set", "best", shelf.hex)
    assert len(Index(database).aliases()) == 2


def test_log_that_only_a_writer_can_read_is_said_plainly(reader: Index, mine: CommandLine) -> None:
    leave_log(mine.home)
    (mine.home / "index.sqlite-shm").unlink()
    before = snapshot(mine.home)
    with pytest.raises(StorageError, match=r"only a writer can read.*where the registry is writable"):
        reader.aliases()
    assert snapshot(mine.home) == before


def test_log_of_a_killed_writer_is_read_where_its_index_is_there(reader: Index, mine: CommandLine) -> None:
    leave_log(mine.home)
    before = snapshot(mine.home)
    assert len(reader.aliases()) == 1
    assert snapshot(mine.home) == before


def test_read_only_index_takes_nothing_and_is_not_upgraded(reader: Index, mine: CommandLine) -> None:
    before = contents(mine.home)
    with pytest.raises(StorageError, match="read-only"):
        reader.add([])
    with pytest.raises(StorageError, match="read-only"), reader.moving():
        pass
    assert contents(mine.home) == before
    with sqlite3.connect(mine.home / "index.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    with pytest.raises(IndexVersion, match=r"0001.*db upgrade"):
        Index(Database(str(mine.home / "index.sqlite"), read_only=True)).aliases()


def locks_on(path: Path) -> int:
    """How many locks this process holds on a file."""
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    inode = str(path.stat().st_ino)
    return sum(line[4] == str(os.getpid()) and line[5].rpartition(":")[2] == inode for line in held)


def test_opening_the_index_once_more_keeps_the_locks_that_this_process_holds_on_it(database: Path) -> None:
    first = Database(str(database))
    with first.reading():
        held = locks_on(database)
        assert held
        for read_only in (False, True):
            assert Index(Database(str(database), read_only=read_only)).newest(1) == []
        assert locks_on(database) == held


def test_asking_for_the_revision_makes_no_index(cli: CommandLine, database: Path) -> None:
    assert Database(str(database)).revision().found is None
    assert cli.ok("db", "current").startswith("found none")
    assert not database.exists()
    assert not cli.home.exists()


def test_index_in_a_directory_of_any_name(tmp_path: Path) -> None:
    for name in (b"a b%20?mode=memory#x", "hüte".encode(), b"\xff\xfe", b"n\nl"):
        path = tmp_path / os.fsdecode(name) / "index.sqlite"
        Database(str(path)).upgrade()
        assert path.stat().st_size
        assert Index(Database(str(path), read_only=True)).newest(1) == []
    assert len(list(tmp_path.iterdir())) == 4
