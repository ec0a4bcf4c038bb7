"""Below a root that others can write to as well: reached one component after another, and never through a link.

The root itself is a person's choice: it and what leads to it may be links. Below it, nobody puts any but to mislead.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from registry.core.errors import IntegrityError, NotFound, StorageError
from registry.disk.files import make_directories, opened, sync_directory, translated

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)  # what O_NOFOLLOW says of one, differently with O_DIRECTORY
_ADVICE = "Nothing in a registry may be a link. Look who put it there, and remove it"
_LASTING: set[str] = set()
"""Directories that this process has seen linked durably into their parents."""


@contextmanager
def directory_inside(root: str, *parts: str) -> Iterator[int]:
    """A descriptor of the directory `parts` below `root`, for as long as the block lasts.

    Raises:
        NotFound: there is none.
        IntegrityError: a part of the way is a link.
        StorageError: a part is no directory, or may not be looked into.
    """
    with translated(root):
        descriptor = os.open(root, _DIRECTORY)
    try:
        for number, part in enumerate(parts):
            path = os.path.join(root, *parts[: number + 1])
            with translated(path):
                try:
                    below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                except FileNotFoundError as error:
                    raise NotFound("no such file or directory", path=path) from error
                except OSError as error:
                    _refuse_link(error, part, descriptor, path)
                    raise
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def open_inside(directory: int, name: str, path: str) -> BinaryIO:
    """Open a file in a directory that was reached so. `path` is what it is called.

    Raises:
        NotFound: there is none.
        IntegrityError: it is a link, or no file. Nothing is read from it, and opening never blocks.
        StorageError: unreadable.
    """
    with translated(path):
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(name, flags, dir_fd=directory)
        except FileNotFoundError as error:
            raise NotFound("no such file or directory", path=path) from error
        except OSError as error:
            _refuse_link(error, name, directory, path)
            if error.errno == errno.ENXIO:  # a socket
                raise IntegrityError("is no regular file", path=path) from error
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IntegrityError("is no regular file", path=path)
    return opened(descriptor, path)


def names_inside(root: str, *parts: str, prefix: str = "") -> list[str]:
    """The names in a directory that start with a prefix, sorted; none where there is no directory.

    Raises as `directory_inside`.
    """
    try:
        with directory_inside(root, *parts) as directory, translated(os.path.join(root, *parts)):
            return sorted(name for name in os.listdir(directory) if name.startswith(prefix))
    except NotFound:
        return []


def kind_inside(root: str, *parts: str) -> int | None:
    """What is there itself, a link or what else, as in `stat.S_IFMT`; None for nothing. Raises as the above."""
    *above, name = parts
    try:
        with directory_inside(root, *above) as directory, translated(os.path.join(root, *parts)):
            return stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except NotFound:
        return None


def make_inside(root: str, *parts: str) -> str:
    """Create a directory and its missing parents, each durably linked into its own parent; returns its path.

    One that is there may be the work of a process that was killed before it could see to that.

    Raises:
        IntegrityError: a part of the way is a link.
        StorageError: a part is no directory, or cannot be made.
    """
    make_directories(root)
    path = root
    for part in parts:
        parent, path = path, os.path.join(path, part)
        with translated(path):
            try:
                os.mkdir(path)
            except FileExistsError:
                require_directory(path)
                if path in _LASTING:
                    continue
        sync_directory(parent)
        _LASTING.add(path)
    return path


def require_directory(path: str) -> None:
    """Refuse to write to what is not a directory itself.

    Raises:
        IntegrityError: it is a link. StorageError: it is something else. NotFound.
    """
    with translated(path):
        kind = os.lstat(path).st_mode
    if stat.S_ISLNK(kind):
        raise IntegrityError("is a link, and is not followed", path=path, hint=_ADVICE)
    if not stat.S_ISDIR(kind):
        raise StorageError("not a directory", path=path)


def _refuse_link(error: OSError, name: str, directory: int, path: str) -> None:
    if error.errno in _NO_LINK and stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        raise IntegrityError("is a link, and is not followed", path=path, hint=_ADVICE) from error
