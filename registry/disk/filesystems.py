"""What the file system below a path bears: whether this user may write there, and whether other machines may too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_MOUNTS = "/proc/self/mountinfo"
_OCTAL = re.compile(rb"\\([0-7]{3})")
_FIELDS = 6  # before the optional ones, which end with a dash
_NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|cvfs|davfs|gfs2|glusterfs|gpfs|lustre|mfs|ncpfs|nfs4?|ocfs2|orangefs|panfs"
    r"|prl_fs|pvfs2|smb[23]|smbfs|vboxsf|virtiofs|wekafs|fuse\..+"
)
"""Those that several machines can have mounted at once, shared disks and a host's directories in its guests included.

One in user space counts as such unless it is known to be local: most are, and being wrong costs little.
"""
_LOCAL = re.compile(r"fuse\.(bindfs|encfs|fuse-overlayfs|gocryptfs|lxcfs|mergerfs|ntfs-3g|snapfuse|squashfuse)")


def is_writable(path: str) -> bool:
    """Whether this process may write to what is there, as the kernel says: by permissions, and by the mount."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def network_kind(path: str) -> str | None:
    """The type of the network file system that holds a directory; None for a local one, or where nothing tells."""
    try:
        with open(_MOUNTS, "rb") as file:
            mounts = file.read()
    except OSError:
        return None
    kind = kind_at(os.fsencode(os.path.realpath(path)), mounts)
    return kind if kind is not None and is_network(kind) else None


def is_network(kind: str) -> bool:
    """Whether a file system of this type may be one that other machines have mounted too."""
    return _NETWORK.fullmatch(kind) is not None and _LOCAL.fullmatch(kind) is None


def kind_at(path: bytes, mountinfo: bytes) -> str | None:
    """The type of the file system that holds the absolute, resolved `path`; None if no mount does.

    Walks down as the kernel does: from the mount at the root to the one that covers the nearest place on the way, and
    so on. So a mount that another one was put over, or over a directory above it, is not taken for what is seen there.

    Args:
        path: which need not exist.
        mountinfo: the text of /proc/<pid>/mountinfo, proc_pid_mountinfo(5).
    """
    mounts = [mount for mount in map(_mount, mountinfo.splitlines()) if mount is not None and _holds(mount.point, path)]
    numbers = {mount.number for mount in mounts}
    reached = [mount for mount in mounts if mount.parent not in numbers or mount.parent == mount.number]
    found: _Mount | None = None
    while reached:
        nearest = min(len(mount.point) for mount in reached)
        found = [mount for mount in reached if len(mount.point) == nearest][-1]
        mounts.remove(found)
        reached = [mount for mount in mounts if mount.parent == found.number]
    return None if found is None else found.kind


@dataclass(frozen=True, slots=True)
class _Mount:
    number: bytes
    parent: bytes
    point: bytes
    kind: str


def _mount(line: bytes) -> _Mount | None:
    fields = line.split(b" ")
    if len(fields) <= _FIELDS or b"-" not in fields[_FIELDS:-1]:
        return None
    point = _OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), fields[4])
    kind = fields[fields.index(b"-", _FIELDS) + 1]
    return _Mount(fields[0], fields[1], point, os.fsdecode(kind))


def _holds(point: bytes, path: bytes) -> bool:
    return path == point or path.startswith(point.rstrip(b"/") + b"/")
