"""Directories as values, to be compared."""

from __future__ import annotations

from pathlib import Path


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by its relative path."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def snapshot(*roots: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """All that a write could change: inode, mode, time of modification and bytes of everything below the roots."""
    found = {}
    for path in (path for root in roots for path in (root, *root.rglob("*"))):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, data)
    return found


def rewrite(path: Path, data: bytes) -> None:
    """Give a file, read-only or not, other bytes in place."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    path.chmod(mode)


def flip(path: Path) -> None:
    """Invert one bit in the middle of a file, as a bad disk would. Doing it again mends it."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    rewrite(path, data)
