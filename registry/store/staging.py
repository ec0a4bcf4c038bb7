"""Staging directories: private, named after the process that owns them, and swept once that process is gone."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from registry.disk import list_names, make_directories, translated

_ABANDONED_AFTER = 7 * 24 * 3600.0  # seconds; for owners whose life cannot be seen from here
_SEPARATOR = "~"


@contextmanager
def staging_directory(root: str) -> Iterator[str]:
    """An empty directory under `root` that is removed, with all it holds, when the block ends."""
    make_directories(root)
    _sweep(root)
    path = os.path.join(root, _SEPARATOR.join((_place(), str(os.getpid()), secrets.token_hex(8))))
    with translated(path):
        os.mkdir(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(root: str) -> None:
    for name in list_names(root):
        path = os.path.join(root, name)
        if _is_abandoned(path, name):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: str, name: str) -> bool:
    place, _, rest = name.partition(_SEPARATOR)
    pid = rest.partition(_SEPARATOR)[0]
    if place == _place() and pid.isdecimal():
        return not _is_alive(int(pid))
    try:
        return time.time() - os.lstat(path).st_mtime > _ABANDONED_AFTER
    except OSError:  # its owner has just removed it
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _place() -> str:
    """Where a process id means what it says: one boot of one kernel, and one pid namespace in it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = socket.gethostname(), ""
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]
