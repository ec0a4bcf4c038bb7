"""A program to run under strace: imports the command once and forks a process for each request, so that hundreds of
commands can be killed, each in another system call, in the time that a few would take to start.

strace counts the calls of every process from 1 and strikes at the LIMIT-th. A process that is to be struck in its n-th
call first makes the LIMIT - n others itself, which fail at once and change nothing.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from registry.cli import main
from tests.support.loading import load_program

LIMIT = 400
_LIMITS = {"openat": 3000}  # the process that forks the others makes a thousand itself
_NOWHERE = 1 << 20  # no such descriptor
_LIBC = ctypes.CDLL(None)
_VAIN: dict[str, Callable[[], object]] = {
    "renameat2": lambda: _LIBC.renameat2(_NOWHERE, b"", _NOWHERE, b"", 0),
    "openat": lambda: os.open("", os.O_RDONLY),
    "mkdir": lambda: os.mkdir(""),
    "rename": lambda: os.rename("", ""),
    "rmdir": lambda: os.rmdir(""),
    "unlink": lambda: os.unlink(""),
    "unlinkat": lambda: os.unlink("", dir_fd=_NOWHERE),
    "write": lambda: os.write(_NOWHERE, b""),
    "pwrite64": lambda: os.pwrite(_NOWHERE, b"", 0),
    "ftruncate": lambda: os.ftruncate(_NOWHERE, 0),
    "fsync": lambda: os.fsync(_NOWHERE),
    "fdatasync": lambda: os.fdatasync(_NOWHERE),
}


def limit(call: str) -> int:
    """The number at which strace is to strike in this call."""
    return _LIMITS.get(call, LIMIT)


def load_everything() -> None:
    """Import whatever a command may come to import, so that none of those forked has to."""
    load_program()
    importlib.import_module("sqlalchemy.dialects.sqlite.pysqlite")
    gc.freeze()


def run(call: str, number: int, arguments: list[str], output: str = os.devnull) -> None:
    silent = os.open(os.devnull, os.O_RDWR)
    told = os.open(output, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in range(3):
        os.dup2(told if stream else silent, stream)
    for _ in range(limit(call) - number if call in _VAIN else 0):
        with suppress(OSError):
            _VAIN[call]()
    sys.argv = ["aorlta-reg", *arguments]
    main()


if __name__ == "__main__":
    load_everything()
    for request in sys.stdin:
        if (child := os.fork()) == 0:
            run(sys.argv[1], **json.loads(request))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
