"""Staging directories: private, named after the process that owns them, and swept once that process is gone."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from registry.disk import directory_inside, make_inside, translated

_ABANDONED_AFTER = 7 * 24 * 3600.0  # seconds; for owners whose life cannot be seen from here
_SEPARATOR = "~"
_NAME = re.compile(r"[0-9a-f]{16}~[0-9]{1,18}~[0-9a-f]+")


@contextmanager
def staging_directory(home: str, name: str) -> Iterator[str]:
    """An empty directory in `name` below `home` that is removed, with all it holds, when the block ends."""
    root = make_inside(home, name)
    _sweep(home, name)
    path = os.path.join(root, _SEPARATOR.join((_place(), str(os.getpid()), secrets.token_hex(8))))
    with translated(path):
        os.mkdir(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def is_staging_name(name: str) -> bool:
    """Whether a staging directory can have this name."""
    return _NAME.fullmatch(name) is not None


def _sweep(home: str, staging: str) -> None:
    with directory_inside(home, staging) as root, translated(os.path.join(home, staging)):
        for name in os.listdir(root):
            if _is_abandoned(root, name):
                shutil.rmtree(name, ignore_errors=True, dir_fd=root)


def _is_abandoned(root: int, name: str) -> bool:
    if not is_staging_name(name):  # not made here
        return False
    place, pid, _ = name.split(_SEPARATOR)
    if place == _place():
        return not _is_alive(int(pid))
    try:
        return time.time() - os.stat(name, dir_fd=root, follow_symlinks=False).st_mtime > _ABANDONED_AFTER
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
