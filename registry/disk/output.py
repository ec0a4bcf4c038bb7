"""An output directory that a person named: reserved first, filled beside, published by one rename."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from registry.core.errors import OutputExists, Refused
from registry.disk.files import sync_directory, translated
from registry.disk.new_files import NewFiles


class OutputDirectory:
    """Publishes a directory at `path` all at once, never over anything that is already there.

    Entering reserves the name by creating an empty directory, and makes `<path>.partial` for the `files`. `publish`
    renames the latter over the former: the kernel refuses that if anyone put something into the reservation, and
    holding the reservation open shows whether it is still the same directory. If the block ends without `publish`, the
    reservation goes; what was written stays in `.partial`, so that nobody takes it for the result and nothing is lost.

    Args:
        path: where the directory is wanted. Its parent must exist.
        names: the files that a leftover `.partial` may hold to be taken for ours and be replaced.
        keep_partial: False removes what was written when the block ends without `publish`.

    Raises:
        OutputExists: the path is taken, now or at `publish`.
        NotFound, StorageError: the parent is missing or cannot be written to.
    """

    def __init__(self, path: str, names: Iterable[str], *, keep_partial: bool = True) -> None:
        self.path = os.path.abspath(path)
        self.partial = f"{self.path}.partial"
        self.files = NewFiles(self.partial, 0o666)
        self._names = frozenset(names)
        self._keep_partial = keep_partial
        self._reservation = -1
        self._made = False
        self._published = False

    def __enter__(self) -> Self:
        with translated(self.path):
            try:
                os.mkdir(self.path)
            except FileExistsError as error:
                raise OutputExists("already exists", path=self.path, hint=_what_is_there(self.path)) from error
            self._reservation = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._remove_leftover()
            with translated(self.partial):
                os.mkdir(self.partial)
            self._made = True
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release()

    def publish(self, *, durable: bool = True) -> None:
        """Give the directory its name. With `durable` it survives a power cut from here on."""
        if durable:
            self.files.sync()
        if not self._reservation_stands():
            raise OutputExists("was replaced while it was reserved", path=self.path, hint=self._kept())
        with translated(self.path):
            try:
                os.rename(self.partial, self.path)
            except (FileExistsError, NotADirectoryError) as error:
                raise OutputExists("appeared meanwhile", path=self.path, hint=self._kept()) from error
            except OSError as error:
                if os.path.isdir(self.path) and os.listdir(self.path):
                    raise OutputExists("appeared meanwhile", path=self.path, hint=self._kept()) from error
                raise
        self._published = True
        if durable:
            sync_directory(os.path.dirname(self.path))

    def _reservation_stands(self) -> bool:
        mine = os.fstat(self._reservation)
        try:
            there = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def _release(self) -> None:
        self.files.close()
        if not self._published:
            if self._made and not self._keep_partial:
                shutil.rmtree(self.partial, ignore_errors=True)
            for path, mine in ((self.partial, self._made), (self.path, self._reservation_stands())):
                if mine:
                    with suppress(OSError):  # not empty: what was written stays, and so does what another put there
                        os.rmdir(path)
        os.close(self._reservation)

    def _remove_leftover(self) -> None:
        with translated(self.partial):
            try:
                kind = os.lstat(self.partial).st_mode
            except FileNotFoundError:
                return
            if not stat.S_ISDIR(kind) or not set(os.listdir(self.partial)) <= self._names:
                raise Refused("is in the way and holds other files", path=self.partial, hint="Move it elsewhere")
            shutil.rmtree(self.partial)

    def _kept(self) -> str:
        return f"What was made stays in {self.partial}"


def _what_is_there(path: str) -> str:
    if os.path.isdir(path) and not os.listdir(path):
        return "It is an empty directory, perhaps left by an interrupted command; remove it or name another"
    return "Nothing was written; name another directory or remove this one"
