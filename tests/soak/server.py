"""Commands as processes that cost a fork: one server for each fault, whatever the system call it is to strike in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import forked

CALLS = (
    "openat",
    "mkdir",
    "write",
    "rename",
    "renameat2",
    "rmdir",
    "unlink",
    "unlinkat",
    "fsync",
    "fdatasync",
    "ftruncate",
    "pwrite64",
)
KILL = "signal=KILL"
NEVER = "none"
"""The call of a command that is left alone."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: -9 where it was killed; stdout and stderr together; whether the fault struck it."""

    code: int
    output: str
    struck: bool


class Server:
    """Runs commands, each struck by the server's fault in its n-th call of a name."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path, log: Path | None) -> None:
        self._process = process
        self._output = scratch / "output"
        self._log = log

    def __call__(self, *arguments: str | Path, call: str = NEVER, number: int = 1) -> Ended:
        assert 1 <= number <= forked.limit(call)
        self._output.unlink(missing_ok=True)
        if self._log is not None:
            os.truncate(self._log, 0)
        request = {"call": call, "number": number, "arguments": [*map(str, arguments)], "output": str(self._output)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        text = self._output.read_text(errors="replace") if self._output.exists() else ""
        return Ended(code, text, code == -9 or (self._log is not None and "(INJECTED)" in self._log.read_text()))


@contextmanager
def server(scratch: Path, fault: str | None = None) -> Iterator[Server]:
    """A server of commands that run as they are, or with a fault in strace's syntax: `signal=KILL`, `error=EIO`."""
    forking: tuple[str, ...] = (sys.executable, "-B", "-m", "tests.soak.server")
    log = None
    if fault is not None:
        strace = shutil.which("strace")
        assert strace is not None
        injected = (option for call in CALLS for option in ("-e", f"inject={call}:{fault}:when={forked.limit(call)}"))
        log = scratch / f"{fault}.log"
        log.touch()
        fast = () if fault == KILL else ("--seccomp-bpf",)  # with it, strace 6 delivers no signals
        names = ",".join(CALLS)
        # appending: the file is emptied before each command
        forking = (strace, "-f", "-qq", *fast, "-A", "-o", str(log), "-e", f"trace={names}", *injected, *forking)
    with subprocess.Popen(forking, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Server(process, scratch, log)
        assert process.stdin is not None
        process.stdin.close()


if __name__ == "__main__":
    forked.load_everything()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            forked.run(**json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.writev(1, [f"{code}\n".encode()])  # a `write` would bring this process itself nearer to its fault
