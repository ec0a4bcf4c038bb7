"""Files being written into a directory that nobody else looks at yet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import BinaryIO

from registry.core.digest import Bytes
from registry.disk.files import create, open_regular, sync_directory, translated, write_all


class NewFiles:
    """Writes files into `directory` and, on `sync`, makes them and their names durable.

    Files stay open between the two, so that an error in writing them back is reported here and nowhere else.

    Args:
        directory: an existing, private directory.
        mode: of the files, subject to the umask.
    """

    def __init__(self, directory: str, mode: int) -> None:
        self.directory = directory
        self._mode = mode
        self._open: list[BinaryIO] = []

    def write(self, name: str, chunks: Iterable[Bytes]) -> int:
        """Write one new file; returns its length in bytes."""
        path = self.path(name)
        file = create(path, self._mode)
        self._open.append(file)
        with translated(path):
            return sum(write_all(file, memoryview(chunk)) for chunk in chunks)

    def open(self, name: str) -> BinaryIO:
        """Read back a file that was written."""
        return open_regular(self.path(name))

    def path(self, name: str) -> str:
        """Where a file of this name lies."""
        return os.path.join(self.directory, name)

    def sync(self) -> None:
        """Wait until all that was written, and the directory that lists it, is on the disk."""
        for file in self._open:
            with translated(str(file.name)):
                os.fsync(file.fileno())
        self.close()
        sync_directory(self.directory)

    def close(self) -> None:
        """Give up the open files, synced or not."""
        while self._open:
            self._open.pop().close()
