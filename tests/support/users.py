"""Commands run by other users. Only root can start those; no permission stops root itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.loading import load_program
from tests.support.process import CommandLine, Finished

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
GROUP = 54300


@dataclass(frozen=True)
class User:
    """A user whose groups are `gid` and GROUP, or for `member=False` only `gid`."""

    uid: int
    gid: int
    umask: int = 0o022
    member: bool = True

    def start(self, cli: CommandLine, *commands: Sequence[str | Path], **extra: str) -> subprocess.Popen[str]:
        """Run the commands one after another, in a process that has this user's rights and no other."""
        groups = [self.gid, GROUP] if self.member else [self.gid]
        process = subprocess.Popen(
            [sys.executable, "-B", "-m", "tests.support.users"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=cli.environment(**extra),
        )
        assert process.stdin is not None
        request = {
            "uid": self.uid,
            "gid": self.gid,
            "groups": groups,
            "umask": self.umask,
            "commands": [[*map(str, command)] for command in commands],
        }
        json.dump(request, process.stdin)
        process.stdin.close()
        return process

    def run(self, cli: CommandLine, *commands: Sequence[str | Path], **extra: str) -> list[Finished]:
        """What became of each command."""
        return results(self.start(cli, *commands, **extra))


def results(process: subprocess.Popen[str]) -> list[Finished]:
    """What became of the commands of a process that was started so."""
    with process:
        assert process.stdout is not None
        return [Finished(**each) for each in json.loads(process.stdout.read())]


_ROOT = os.geteuid() == 0
ONE = User(54321, 54321) if _ROOT else User(os.getuid(), os.getgid())
"""A user like any other: who is not root plays that part alone."""
OTHER = User(54322, 54322)
STRANGER = User(54323, 54323, member=False)


@contextmanager
def common_ground() -> Iterator[Path]:
    """A directory that every user may enter: those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="aorlta-users-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def give(directory: Path, user: User, *, group: int | None = None, mode: int | None = None) -> None:
    """Make a directory, with all that is in it, a user's."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user.uid, user.gid if group is None else group, follow_symlinks=False)
    if mode is not None:
        directory.chmod(mode)


def _load_everything(added: list[list[str]]) -> None:
    """Import what commands import when they need it: another user may have no right to read this Python."""
    from registry import Registry
    from registry.cli import main

    load_program()

    with tempfile.TemporaryDirectory() as scratch, _silence():
        for rehearsal in (["db", "upgrade"], *added, ["alias", "list"], ["list"], ["reindex"]):
            sys.argv = ["aorlta-reg", *rehearsal, "--home", f"{scratch}/home"]
            with suppress(SystemExit):
                main()
        for adapter in Registry(f"{scratch}/home").newest(1):
            Registry(f"{scratch}/home").set_alias("rehearsed", adapter.digest.hex)


@contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _run(request: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
    from registry.cli import main

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        if (child := os.fork()) == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            if _ROOT:
                os.setgroups(request["groups"])
                os.setgid(request["gid"])
                os.setuid(request["uid"])
            os.umask(request["umask"])
            sys.argv = ["aorlta-reg", *arguments]
            main()
            os._exit(99)  # `main` exits by itself
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return {"code": code, "out": _text(out), "err": _text(err)}


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


if __name__ == "__main__":
    _request = json.load(sys.stdin)
    _load_everything([each for each in _request["commands"] if each[0] == "add"][:1])
    json.dump([_run(_request, _arguments) for _arguments in _request["commands"]], sys.stdout)
