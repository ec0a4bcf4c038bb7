"""Real processes under strace: what they asked the kernel for, and the same with the kernel failing or killing them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.forked import LIMIT
from tests.support.process import COMMAND, CommandLine, Finished

_STRACE = shutil.which("strace")
_LINE = re.compile(r"\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")


def _works() -> bool:
    """Whether a process may be traced here: containers often forbid it."""
    return _STRACE is not None and subprocess.run([_STRACE, "-o", "/dev/null", "true"], check=False).returncode == 0


needs_strace = pytest.mark.skipif(not _works(), reason="strace is missing, or this machine forbids tracing")


def trace(cli: CommandLine, *arguments: str | Path, log: Path, calls: Iterable[str]) -> list[tuple[str, str]]:
    """Run a command that must succeed; the system calls of these names that it made, in order, with their arguments.

    Descriptors are shown with their paths: `fsync`, `3</home/adapters>) = 0`. A call during which another thread made
    one appears twice, as it began and as it ended.
    """
    done = _run(cli, arguments, "--seccomp-bpf", "-y", "-s", "0", "-o", str(log), "-e", f"trace={','.join(calls)}")
    assert done.code == 0, done.err
    return [(match[1], match[2]) for line in log.read_text().splitlines() if (match := _LINE.match(line))]


def inject(cli: CommandLine, *arguments: str | Path, fault: str, path: Path | None = None) -> Finished:
    """Run a command with a fault in strace's syntax: `rename:signal=KILL:when=2`, `write:error=ENOSPC:when=1+`.

    Several are separated by spaces. With `path`, only calls on that file count. A process that is killed has the exit
    code -9.
    """
    only = () if path is None else ("-P", str(path))
    fast = () if ":signal=" in fault else ("--seccomp-bpf",)  # with it, strace 6 delivers no signals
    faults = fault.split()
    watched = ("-e", f"trace={','.join(each.partition(':')[0] for each in faults)}")
    injected = (option for each in faults for option in ("-e", f"inject={each}"))
    return _run(cli, arguments, *fast, *only, "-o", "/dev/null", *watched, *injected)


@contextmanager
def killer(call: str) -> Iterator[Callable[..., int]]:
    """A function that runs a command, kills it as it enters its n-th such call, and returns its exit code or -9."""
    assert _STRACE is not None
    fault = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={LIMIT}")
    forking = (sys.executable, "-B", "-m", "tests.support.forked", call)
    with subprocess.Popen(
        [_STRACE, "-f", "-qq", "-o", "/dev/null", *fault, *forking],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(number: int, *arguments: str | Path) -> int:
            assert number <= LIMIT, "or it would be killed in the same call again and again"
            print(json.dumps({"number": number, "arguments": [*map(str, arguments)]}), file=process.stdin, flush=True)
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


def _run(cli: CommandLine, arguments: tuple[str | Path, ...], *options: str) -> Finished:
    assert _STRACE is not None
    done = subprocess.run(
        [_STRACE, "-f", "-qq", *options, *COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=cli.environment(PYTHONDONTWRITEBYTECODE="1"),
        timeout=120,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
