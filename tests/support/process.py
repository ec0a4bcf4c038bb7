"""The command line as users run it: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, "-m", "registry.cli")


@dataclass(frozen=True)
class Finished:
    """What a finished process left: exit code, stdout and stderr apart."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs `aorlta-reg` against one registry home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def environment(self, **extra: str) -> dict[str, str]:
        """The environment a command gets."""
        return {**os.environ, "AORLTA_REG_HOME": str(self.home), **extra}

    def __call__(self, *arguments: str | Path, cwd: Path | None = None, **extra: str) -> Finished:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=self.environment(**extra),
            cwd=cwd,
            timeout=120,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start a command, and go on."""
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )

    def ok(self, *arguments: str | Path) -> str:
        """Run a command that must succeed; its stdout, stripped."""
        done = self(*arguments)
        assert done.code == 0, f"{arguments}: exit {done.code}\n{done.out}\n{done.err}"
        return done.out.strip()
