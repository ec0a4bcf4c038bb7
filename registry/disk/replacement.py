"""A directory that takes the place of another, all at once, if that one holds nothing but files of known names."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from registry.core.errors import OutputExists, StorageError
from registry.disk.files import translated
from registry.disk.new_files import NewFiles

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Replacement:
    """Publishes a directory in the place of the one at `path`, which is removed afterwards.

    The `files` are written beside it. `publish` exchanges the two in one step, so that `path` is always one of them;
    where the file system cannot do that, the old one is renamed away first, and back if the new one cannot follow. What
    came out is looked at once more: if it holds other files, it is put back. Two processes at once are no harm.

    Args:
        path: an existing directory.
        names: the files that it may hold.

    Raises:
        OutputExists: it is no directory, or holds anything else, now or at `publish`. It is as it was.
        StorageError.
    """

    def __init__(self, path: str, names: Iterable[str]) -> None:
        self.path = os.path.abspath(path)
        self._names = frozenset(names)
        self._beside = f"{self.path}.partial-{secrets.token_hex(4)}"
        self.files = NewFiles(self._beside, 0o666)

    def __enter__(self) -> Self:
        _require_known(self.path, self._names, self.path)
        with translated(self._beside):
            os.mkdir(self._beside)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.files.close()
        with suppress(OSError):  # gone, if all went well
            _remove(self._beside, self._names)

    def publish(self) -> None:
        """Exchange the two, and remove the old one."""
        self.files.close()
        with translated(self.path):
            self._beside = _exchange(self._beside, self.path)
        try:
            _require_known(self._beside, self._names, self.path)
        except OutputExists:
            with translated(self.path):
                self._beside = _exchange(self._beside, self.path)
            raise
        try:
            _remove(self._beside, self._names)
        except OSError as error:
            hint = f"{self.path} was replaced; what is left of the old one may be removed"
            raise StorageError("could not be removed", path=self._beside, hint=hint) from error


def remove_directory(path: str, names: Iterable[str]) -> None:
    """Remove a directory that holds nothing but files of these names.

    Raises:
        OutputExists: it is no directory, or holds anything else. It is as it was.
        StorageError.
    """
    known = frozenset(names)
    _require_known(path, known, path)
    with translated(path):
        _remove(path, known)


def _require_known(path: str, names: frozenset[str], called: str) -> None:
    """Refuse a directory with other files. `called` is what messages name, where this one was renamed away."""
    with translated(called):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise OutputExists("is no directory, and is not replaced", path=called)
        with os.scandir(path) as entries:
            other = sorted(
                entry.name for entry in entries if entry.name not in names or not entry.is_file(follow_symlinks=False)
            )
    if other:
        hint = "Only a directory that holds an adapter's files and nothing else is replaced"
        raise OutputExists("holds other files", path=called, found=", ".join(other[:3]), hint=hint)


def _remove(path: str, names: frozenset[str]) -> None:
    """Remove the known files and the directory; what else anyone put there stays, and so does the directory."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(path)


def _exchange(incoming: str, path: str) -> str:
    """Put the directory `incoming` at `path`; returns where the one that was there is now."""
    if _swap(incoming, path):
        return incoming
    outgoing = f"{incoming}-old"
    os.rename(path, outgoing)
    try:
        os.rename(incoming, path)
    except BaseException:
        os.rename(outgoing, path)
        raise
    return outgoing


def _swap(one: str, other: str) -> bool:
    """Exchange what two paths name, in one step; False where kernel, C library or file system cannot."""
    import ctypes  # noqa: PLC0415  only here: it takes as long to load as a small adapter to copy

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), other)
