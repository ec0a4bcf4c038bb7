"""Single files: written durably, read without following surprises, copied while being hashed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from registry.core.digest import Bytes, Digest
from registry.core.errors import IntegrityError, NotFound, Refused, StorageError

CHUNK = 256 * 1024
"""Read size: larger buffers fall out of a core's L2 cache, where hashing them is much slower."""
SAFETENSORS = ".safetensors"
_FICLONE = 0x40049409  # linux/fs.h: share the source's extents, copy on write
_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space and run the command again",
    errno.EDQUOT: "The disk quota is used up: free some space and run the command again",
    errno.EROFS: "The file system is read-only",
    errno.EACCES: "Check the permissions",
    errno.EPERM: "Check the permissions",
    errno.EXDEV: "HOME is one directory of one file system: nothing in it may be mounted from elsewhere",
}


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn an OSError of the block into NotFound (nothing there) or StorageError (anything else), naming the path."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound("no such file or directory", path=error.filename or path) from error
    except OSError as error:
        hint = _ADVICE.get(error.errno or 0)
        raise StorageError(os.strerror(error.errno or errno.EIO).lower(), path=path, hint=hint) from error


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        NotFound: nothing there.
        Refused: a directory, FIFO, device or socket. Nothing is read from it, and opening never blocks.
        StorageError: unreadable.
    """
    with translated(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused("not a regular file", path=path)
    return opened(descriptor, path)


def opened(descriptor: int, path: str) -> BinaryIO:
    """The file of a descriptor, for reading; it knows its name."""
    return open(path, "rb", buffering=0, opener=lambda _path, _flags: descriptor)


def read_small(path: str, limit: int = 16 << 20) -> bytes:
    """The whole of a file that is expected to be small.

    Raises:
        Refused: it is longer than `limit` bytes; otherwise as `open_regular`.
    """
    with open_regular(path) as file:
        return whole(file, limit)


def whole(file: BinaryIO, limit: int) -> bytes:
    """All of an open file. Raises as `read_small`."""
    path = str(file.name)
    with translated(path):
        data = b""
        while len(data) <= limit and (more := file.read(limit + 1 - len(data))):
            data += more
    if len(data) > limit:
        raise Refused("larger than any such file should be", path=path, expected=f"at most {limit} bytes")
    return data


def write_file(path: str, chunks: Iterable[Bytes], mode: int = 0o666) -> int:
    """Create `path`, which must not exist, write the chunks and fsync it. Returns its length in bytes.

    `mode` is subject to the umask. On failure the incomplete file stays for the caller to remove.
    """
    with create(path, mode) as file, translated(path):
        length = sum(write_all(file, memoryview(chunk)) for chunk in chunks)
        os.fsync(file.fileno())
    return length


def create(path: str, mode: int = 0o666) -> BinaryIO:
    """Open the new file `path` for writing, unbuffered. Nothing may be there, not even a dangling link."""
    with translated(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    return open(path, "wb", buffering=0, opener=lambda _path, _flags: descriptor)  # so that the file knows its name


def write_all(file: BinaryIO, data: memoryview) -> int:
    """Write all of `data`, however little the kernel takes at a time; returns its length."""
    done = 0
    while done < len(data):
        done += file.write(data[done:])
    return done


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    with translated(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_directories(path: str) -> None:
    """Create a directory and its missing parents, each durably linked into its own parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent)
    with translated(path), suppress(FileExistsError):  # another process was first
        os.mkdir(path)
    sync_directory(parent)


def list_names(path: str, prefix: str = "") -> list[str]:
    """The names in a directory that start with a prefix, sorted; none where there is no directory."""
    with translated(path):
        try:
            return sorted(name for name in os.listdir(path) if name.startswith(prefix))
        except FileNotFoundError:
            return []


def holds_safetensors(path: str) -> bool:
    """Whether this is a safetensors file, or a directory with one."""
    if os.path.isdir(path):
        return any(name.endswith(SAFETENSORS) for name in list_names(path))
    return path.endswith(SAFETENSORS) and os.path.exists(path)


def blocks(file: BinaryIO) -> Iterator[memoryview]:
    """Everything from the file's position on. A block is overwritten when the next one is asked for."""
    buffer = memoryview(bytearray(CHUNK))
    while True:
        with translated(str(file.name)):
            count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            return
        yield buffer[:count]


def hash_file(file: BinaryIO, inspect: Callable[[memoryview], None] | None = None) -> Digest:
    """sha256 of everything from the file's position on; each block is also shown to `inspect`, which may raise."""
    hasher = hashlib.sha256()
    for block in blocks(file):
        hasher.update(block)
        if inspect is not None:
            inspect(block)
    return Digest(hasher.hexdigest())


def copy_verified(source: BinaryIO, path: str, expected: Digest) -> None:
    """Copy an open file to the new file `path`, hashing every byte that is handed on.

    Where the file system can share extents (reflink), the copy is made that way and then hashed; elsewhere the bytes
    are hashed between reading and writing. Never a hard link: nothing done to the copy can reach the source.

    Raises:
        IntegrityError: the bytes do not have the digest `expected`. The bad copy is removed.
    """
    with create(path) as target, translated(path):
        if _reflinked(source, target):
            with open_regular(path) as copy:
                actual = hash_file(copy)
        else:
            actual = hash_file(source, lambda block: _discard(write_all(target, block)))
    if actual != expected:
        with suppress(OSError):
            os.unlink(path)
        raise IntegrityError(
            "stored bytes do not match their digest", path=source.name, expected=expected, found=actual
        )


def _reflinked(source: BinaryIO, target: BinaryIO) -> bool:
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _discard(_count: int) -> None:
    return None
