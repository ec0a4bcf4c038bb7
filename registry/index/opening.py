"""Opening the index's file: read-only where nothing may be written, and with a journal that its file system bears.

SQLite's write-ahead log needs memory that all its readers share, so it is only for one machine's own disks
(https://www.sqlite.org/wal.html); the rollback journal needs no more than locks.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from registry.core.errors import IndexDamaged, StorageError
from registry.disk import make_directories, network_kind, translated

BUSY_TIMEOUT = 60.0  # seconds to wait for another process
COMPANIONS = ("-wal", "-shm", "-journal")
REINDEX = "Run `aorlta-reg reindex`: it is made anew from the store"
WHERE_WRITABLE = "Run a command such as `aorlta-reg list` where the registry is writable: it finishes what was begun"
_WAL = b"\x02\x02"  # bytes 18 and 19 of the file: https://www.sqlite.org/fileformat.html
_TRIES = 20
_PAUSE = 0.05  # seconds
_PASSING = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
"""What a reader gets whose writer has just gone, or just come."""
_NOT_THE_JOURNALS_FAULT = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOTADB}

_HELD: dict[tuple[int, int], int] = {}  # device and inode to a descriptor

Signature = tuple[int, int, int, int]


def open_for_writing(path: str, note: Callable[[str], None]) -> sqlite3.Connection:
    """A connection to the database, which is made where there is none, with the mode that the umask gives.

    SQLite gives its other files the mode of this one. A new database has a write-ahead log, or a rollback journal on a
    network file system or where a log is refused; an older one's journal is changed only if it is a log on a network.

    Raises:
        IndexDamaged: a link, or no file, is where it should be.
        StorageError, sqlite3.Error.
    """
    require_plain_files(path)
    _make(path)
    network = network_kind(os.path.dirname(path))
    journal = _journal(path)
    if network is not None and journal == _WAL:
        _leave_log(path)
    connection = _connect(path, "rw")
    if not journal and network is None and not _enter_log(connection):
        connection.close()
        _leave_log(path)
        note("the index's file system bears no write-ahead log: it has a rollback journal, so readers wait for writers")
        connection = _connect(path, "rw")
    elif network is not None and journal in (b"", _WAL):
        note(
            f"the registry is on a network file system ({network}): the index has a rollback journal, and is as safe as"
            " the locks of that file system"
        )
    return connection


def open_for_reading(path: str) -> tuple[sqlite3.Connection, Signature | None]:
    """A connection to the existing database that writes nothing, not even beside it.

    Where there is a log, or a rollback journal, SQLite looks after those who write meanwhile. Without a log, which its
    last writer takes away, nothing tells them of a reader that cannot write: then the second value is the database's
    signature, and what was read is good only if `signature` is still the same afterwards.

    Raises:
        IndexDamaged: a link, or no file, is where it should be.
        StorageError: its log cannot be read where nothing can be written.
    """
    for _ in range(_TRIES):
        require_plain_files(path)
        before = signature(path)
        logged = _journal(path) == _WAL
        frozen = logged and not _size(f"{path}-wal")
        how = "ro&immutable=1" if frozen else "ro&readonly_shm=1" if logged else "ro"
        try:
            connection = _connect(path, how)
            connection.execute("PRAGMA schema_version").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _PASSING:
                raise
            time.sleep(_PAUSE)
            continue
        return connection, before if frozen else None
    raise StorageError(
        "the index has changes that only a writer can read, and is read-only here", path=path, hint=WHERE_WRITABLE
    )


def signature(path: str) -> Signature:
    """What is different after anyone has written to the database itself."""
    with translated(path):
        status = os.lstat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_plain_files(path: str) -> None:
    """Refuse a database, or a file of SQLite's beside it, that is a link or no file. What is missing is no matter.

    Raises:
        IndexDamaged.
    """
    for each in (path, *(path + end for end in COMPANIONS)):
        with translated(each), suppress(FileNotFoundError):
            kind = os.lstat(each).st_mode
            if not stat.S_ISREG(kind):
                what = "a link" if stat.S_ISLNK(kind) else "no file"
                raise IndexDamaged(f"the index is {what}", path=each, hint=REINDEX)


def _make(path: str) -> None:
    make_directories(os.path.dirname(path))
    with translated(path), suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))


def _journal(path: str) -> bytes:
    """Bytes 18 and 19 of the database; none where it is empty.

    The descriptor is never closed: with any that is, the process loses every lock that SQLite holds on the file for it
    (https://www.sqlite.org/howtocorrupt.html, 2.2). There is one for each file.
    """
    with translated(path):
        there = os.lstat(path)
        if (there.st_dev, there.st_ino) not in _HELD:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            there = os.fstat(descriptor)
            _HELD[there.st_dev, there.st_ino] = descriptor
        return os.pread(_HELD[there.st_dev, there.st_ino], 2, 18)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _connect(path: str, how: str) -> sqlite3.Connection:
    """A connection to exactly this file, which must exist: not to what a link, put there just now, leads to."""
    name = f"file://{quote(os.fsencode(os.path.abspath(path)))}?mode={how}"
    connection = sqlite3.connect(name, uri=True, timeout=BUSY_TIMEOUT, check_same_thread=False, isolation_level=None)
    connection.text_factory = os.fsdecode
    opened = connection.execute("PRAGMA database_list").fetchone()[2]
    connection.text_factory = str
    with translated(path):
        there = os.lstat(path)
        same = os.path.samestat(there, os.stat(opened))
    if not same:
        connection.close()
        raise IndexDamaged("the index was replaced by a link", path=path, hint=REINDEX)
    return connection


def _enter_log(connection: sqlite3.Connection) -> bool:
    """Whether the database now has a write-ahead log, and it works."""
    try:
        mode: str = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        connection.execute("PRAGMA schema_version").close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _NOT_THE_JOURNALS_FAULT:
            raise
        return False
    return mode == "wal"


def _leave_log(path: str) -> None:
    """Give the database a rollback journal. Waits until nobody else has it open; needs no shared memory."""
    until = time.monotonic() + BUSY_TIMEOUT
    while True:
        connection = _connect(path, "rw")
        try:
            for statement in ("PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=DELETE"):
                connection.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        else:
            return
        finally:
            connection.close()
        time.sleep(_PAUSE)
