"""Which file system holds a path: mountinfo as kernels print it, and the kernel itself."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from registry.disk import network_kind
from registry.disk.filesystems import is_network, kind_at

# As printed by Linux: number, parent, device, root, mount point, options, optional fields, "-", type, source, options.
MOUNTS = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:44 / /home rw,relatime shared:20 master:3 - nfs4 server:/export/home rw,vers=4.2,addr=10.0.0.1
41 40 0:45 / /home/ann/scratch rw - xfs /dev/sdb1 rw
42 27 0:46 / /mnt/my\040shared\134disk rw - cifs //server/share rw
43 27 0:47 / /mnt/tab\011new\012line rw - lustre mgs@tcp:/fs rw
44 27 0:48 / /mnt/covered/inner rw - nfs4 server:/inner rw
45 27 0:49 / /mnt/covered rw - tmpfs tmpfs rw
46 27 0:50 / /mnt/twice rw - ext4 /dev/sdc1 rw
47 46 0:51 / /mnt/twice rw - fuse.sshfs user@host:/ rw
48 27 0:52 / /mnt/bytes\377 rw - ceph mon:/ rw
nonsense
49 27 0:53
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"/", "ext4"),
        (b"/var/lib/registry", "ext4"),
        (b"/homes", "ext4"),
        (b"/home", "nfs4"),
        (b"/home/ann", "nfs4"),
        (b"/home/ann/scratch", "xfs"),
        (b"/home/ann/scratch/registry", "xfs"),
        (b"/home/ann/scratchy", "nfs4"),
        (b"/mnt/my shared\\disk/registry", "cifs"),
        (b"/mnt/my", "ext4"),
        (b"/mnt/tab\tnew\nline/x", "lustre"),
        (b"/mnt/covered/inner/x", "tmpfs"),
        (b"/mnt/twice/x", "fuse.sshfs"),
        (b"/mnt/bytes\xff/x", "ceph"),
    ],
)
def test_file_system_of_a_path_is_that_of_the_mount_that_is_seen_there(path: bytes, kind: str) -> None:
    assert kind_at(path, MOUNTS) == kind


@pytest.mark.parametrize("mounts", [b"", b"nonsense\n\n", b"1 1 0:1 / /elsewhere rw - nfs server:/ rw"])
def test_path_that_no_mount_holds_has_none(mounts: bytes) -> None:
    assert kind_at(b"/data", mounts) is None


def test_mounts_that_lead_round_in_a_circle_are_no_trap() -> None:
    circle = b"1 2 0:1 / / rw - nfs a rw\n2 1 0:2 / / rw - ext4 b rw\n3 3 0:3 / / rw - xfs c rw\n"
    assert kind_at(b"/data", circle) == "xfs"


@pytest.mark.parametrize(
    ("kind", "network"),
    [(kind, True) for kind in ("nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "9p", "virtiofs", "beegfs", "gpfs")]
    + [(kind, True) for kind in ("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.never-heard-of")]
    + [
        (kind, False)
        for kind in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "nfsd", "fuseblk", "fuse.mergerfs")
    ],
)
def test_network_file_systems_are_told_from_local_ones(kind: str, network: bool) -> None:
    assert is_network(kind) is network


SAME = {
    "tmpfs": ("tmpfs", "devtmpfs"),
    "overlayfs": ("overlay",),
    "ext2/ext3": ("ext2", "ext3", "ext4"),
    **{name: (name,) for name in ("proc", "sysfs", "xfs", "btrfs")},
}
"""What statfs(2) says, by `stat`'s words, and the types that mountinfo may have for it."""


def mount_points() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    points = [re.sub(rb"\\(\d{3})", lambda m: bytes([int(m[1], 8)]), line.split(b" ")[4]) for line in lines]
    return [os.fsdecode(point) for point in points if os.path.isdir(point)]


def test_the_kernel_says_the_same_of_every_place_that_is_mounted_here() -> None:
    checked = 0
    mounts = Path("/proc/self/mountinfo").read_bytes()
    for point in mount_points():
        told = subprocess.run(["stat", "-f", "-c", "%T", point], capture_output=True, text=True, check=False)
        kind = kind_at(os.fsencode(os.path.realpath(point)), mounts)
        if told.returncode == 0 and (seen := told.stdout.strip()) in SAME:
            assert kind in SAME[seen], point
            checked += 1
    assert checked


def test_local_directory_is_on_no_network(tmp_path: Path) -> None:
    if not stat.S_ISDIR(tmp_path.stat().st_mode) or network_kind("/") is not None:
        pytest.skip("this machine itself is on a network file system")
    assert network_kind(str(tmp_path)) is None
    assert network_kind(str(tmp_path / "not" / "yet")) is None
