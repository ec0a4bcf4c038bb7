"""Commands in a mount namespace of their own, where mounts can be made that nobody else sees."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.process import COMMAND, CommandLine, Finished

_PRIVATE = ("unshare", "--mount", "sh", "-c")


def _works() -> bool:
    try:
        return subprocess.run([*_PRIVATE, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_mounts = pytest.mark.skipif(not _works(), reason="this machine does not let tests mount anything")


def run_mounted(cli: CommandLine, mounts: str, *commands: str, **extra: str) -> Finished:
    """Run shell commands where `mounts`, shell commands too, were run before; `$REG` is the command, `$HOME_` its home.

    The exit code is that of the last one.
    """
    script = "\n".join(("set -e", mounts, "set +e", *commands))
    done = subprocess.run(
        [*_PRIVATE, script],
        capture_output=True,
        text=True,
        env=cli.environment(REG=" ".join(COMMAND), **extra),
        timeout=120,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def as_network(directory: Path, kind: str = "nfs4") -> str:
    """The mounts by which a command takes the file system at the root of all for one on a network.

    The kernel's own list is replaced for the process that runs it, which has the shell's number; to be followed by
    `exec $REG ...`. Only the list says so: the file system is what it was.
    """
    listed = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    lines = [line.partition(" - ")[0] + f" - {kind} server:/export rw" for line in listed if line.split()[4] == "/"]
    faked = directory / "mountinfo"
    faked.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    return f"mount --bind '{faked}' /proc/$$/mountinfo"
