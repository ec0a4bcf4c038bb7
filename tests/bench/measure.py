"""Timing whole processes: wall seconds and the kernel's own account of peak memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """What to run, and what to do before each run, untimed."""

    arguments: Sequence[str]
    prepare: Callable[[], None] = lambda: None
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Figures:
    """Medians of several runs: wall seconds and peak resident bytes."""

    seconds: float
    peak_bytes: int


def alternate(commands: Mapping[str, Command], runs: int) -> dict[str, Figures]:
    """Run all commands in turn, `runs` times after one warm-up round, so that drift of the machine hits them alike."""
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
    for number in range(runs + 1):
        for name, command in commands.items():
            command.prepare()
            os.sync()
            figures = run_once(command)
            if number:
                seen[name].append(figures)
    return {
        name: Figures(
            statistics.median(seconds for seconds, _ in each), int(statistics.median(peak for _, peak in each))
        )
        for name, each in seen.items()
    }


def run_once(command: Command) -> tuple[float, int]:
    """Wall seconds and peak resident bytes of one run, which must succeed."""
    environment = {**os.environ, **(command.environment or {})}
    start = time.perf_counter()
    process = subprocess.Popen(
        list(command.arguments), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    stderr = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command.arguments}: exit {process.returncode}: {stderr.decode()}")
    return seconds, usage.ru_maxrss * 1024
