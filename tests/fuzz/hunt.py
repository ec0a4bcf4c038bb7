"""Running a target on many inputs, in a forked process that may not take more than its share and that may die."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from registry import RegistryError
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import Target

CPU_SECONDS = 10
"""For one input, which has at most a megabyte. The process is killed by then."""

WALL_SECONDS = 120
MEMORY, MEMORY_PER_BYTE = 64 << 20, 64
"""What the process may grow by for one input, and for each byte of it."""

ADDRESSES = 2 << 30
BATCH = 500


@dataclass(frozen=True)
class Finding:
    """An input that breaks the property, and how."""

    target: str
    label: str
    why: str
    data: bytes


@dataclass
class Hunt:
    """What came of one target's inputs."""

    inputs: int = 0
    accepted: int = 0
    findings: list[Finding] = field(default_factory=list)


Inputs = Callable[[int], tuple[str, bytes]]


def generated(target: Target, seed: int) -> Inputs:
    """The n-th input of a seed: always the same."""
    pool = (*target.seeds, *target.corpus.values())

    def make(number: int) -> tuple[str, bytes]:
        return f"{seed}-{number}", mutated(Random(f"{seed} {target.name} {number}"), target.kind, pool)

    return make


def kept(target: Target) -> Inputs:
    """The n-th input of those that are kept, sound ones first."""
    items = [*((f"seed-{n}", data) for n, data in enumerate(target.seeds)), *target.corpus.items()]
    return lambda number: items[number]


def hunt(target: Target, inputs: Inputs, numbers: Sequence[int], scratch: Path) -> Hunt:
    """Run a target on these inputs."""
    result, rest = Hunt(), list(numbers)
    while rest:
        batch, rest = rest[:BATCH], rest[BATCH:]
        done = 0
        for message in _run(target, inputs, batch, scratch):
            if message["event"] == "begin":
                done += 1
            elif message["event"] == "end":
                result.accepted += message["accepted"]
            else:
                label, data = inputs(message["number"])
                result.findings.append(Finding(target.name, label, message["why"], data))
        result.inputs += done
        rest = batch[done:] + rest
    return result


def _run(target: Target, inputs: Inputs, numbers: Sequence[int], scratch: Path) -> Iterator[dict[str, object]]:
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        code = 1
        try:
            _work(target, inputs, numbers, scratch, writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    current = -1
    with open(reader, encoding="utf-8") as messages:
        for line in messages:
            message = json.loads(line)
            current = message.get("number", current)
            yield message
    _, status = os.waitpid(child, 0)
    if status:
        yield {"event": "finding", "number": current, "why": f"the process died: {os.waitstatus_to_exitcode(status)}"}


def _work(target: Target, inputs: Inputs, numbers: Sequence[int], scratch: Path, writer: int) -> None:
    addresses = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + ADDRESSES, addresses + ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    counts: Counter[str] = Counter()

    def tell(**message: object) -> None:
        os.write(writer, (json.dumps(message) + "\n").encode())

    directory = scratch / "input"
    for number in numbers:
        tell(event="begin", number=number)
        _, data = inputs(number)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        before = _peak()
        try:
            target.run(data, directory)
            counts["accepted"] += 1
        except RegistryError as error:
            str(error).encode("utf-8", "backslashreplace")
        except BaseException:  # noqa: BLE001  any other is a finding
            tell(event="finding", number=number, why=traceback.format_exc(limit=-6)[-3000:])
        grown = _peak() - before
        if grown > MEMORY + MEMORY_PER_BYTE * len(data):
            tell(event="finding", number=number, why=f"{len(data)} bytes took {grown >> 20} MiB")
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    tell(event="end", accepted=counts["accepted"])


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def save(findings: Sequence[Finding], directory: Path) -> None:
    """Keep each finding's input, and tell why it is one."""
    for finding in findings:
        place = directory / finding.target
        place.mkdir(parents=True, exist_ok=True)
        (place / finding.label).write_bytes(finding.data)
        last = finding.why.strip().splitlines()[-1]
        print(f"FOUND {finding.target} {finding.label}: {last}", file=sys.stderr)
        (place / f"{finding.label}.why").write_text(finding.why, encoding="utf-8")
