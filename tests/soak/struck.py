"""Kills and faults: each command, struck in its n-th system call of a name, and what is found then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from tests.soak.commands import Row, World, prepare, settled
from tests.soak.invariants import CORRUPT, FAILED, LOST, Finding, check, check_output, readable
from tests.soak.server import CALLS, KILL, Server, server

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")
_STRIDE = {"pwrite64": 7, "openat": 5}  # many, and much the same


@dataclass
class Struck:
    """What was done: `points` strikes by command, adapters read, and what was found."""

    points: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    findings: list[Finding] = field(default_factory=list)
    complete: bool = False


def kills(
    rows: Sequence[Row], world: World, scratch: Path, seed: int, seconds: float, points: int | None = None
) -> Struck:
    """Kill each of these commands in every call, in random order, until time is up or there were so many points."""
    return _strike(rows, world, scratch, Random(seed), seconds, points, (KILL,))


def faults(
    rows: Sequence[Row], world: World, scratch: Path, seed: int, seconds: float, points: int | None = None
) -> Struck:
    """Let every call of each fail with every error, likewise."""
    return _strike(rows, world, scratch, Random(seed), seconds, points, tuple(f"error={error}" for error in ERRORS))


def _strike(
    rows: Sequence[Row],
    world: World,
    scratch: Path,
    random: Random,
    seconds: float,
    points: int | None,
    kinds: tuple[str, ...],
) -> Struck:
    result, ends = Struck(), time.monotonic() + seconds

    def enough() -> bool:
        return time.monotonic() >= ends if points is None else result.points.total() >= points

    with ExitStack() as stack:
        plain = stack.enter_context(server(scratch))
        servers = {kind: stack.enter_context(server(scratch, kind)) for kind in kinds}
        lanes = [(row, call, kind, _numbers(call, random)) for row in rows for call in CALLS for kind in kinds]
        random.shuffle(lanes)
        while lanes and not enough():  # one point of each lane in turn, so that none is left to the end
            left = []
            for lane in lanes:
                row, call, kind, numbers = lane
                if enough():
                    break
                if _one(row, world, scratch / "at", call, next(numbers), servers[kind], plain, result):
                    left.append(lane)
            else:
                lanes = left
        result.complete = not lanes
    return result


def _numbers(call: str, random: Random) -> Iterator[int]:
    stride = _STRIDE.get(call, 1)
    return count(1 + random.randrange(stride), stride)


def _one(
    row: Row,
    world: World,
    directory: Path,
    call: str,
    number: int,
    striking: Server,
    plain: Server,
    result: Struck,
) -> bool:
    """Strike once and look at everything; whether the command came to its n-th call."""
    place, arguments = prepare(row, world, directory)
    ended = striking(*arguments, call=call, number=number)
    if not ended.struck:
        if ended.code:
            result.findings.append(Finding(FAILED, f"{row.name}: exit {ended.code}: {ended.output}"))
        return False
    result.points[row.name] += 1
    found = []
    if ended.code not in (0, 7, -9, *row.ends) or "Traceback" in ended.output:
        found.append(Finding(FAILED, f"exit {ended.code}: {ended.output}"))
    reads, problems = readable(place.home, damaged=[world.digests[name] for name in row.damaged])
    result.reads += reads
    found += problems
    found += check_output(place.out, [world.digests[name] for name in row.gives])
    if ended.code == 0 and not row.fresh:
        found += _promised(row, world, place.home)
    if not found:
        repeat, again = settled(row, world, place), plain(*arguments)
        if again.code not in repeat.repeats or "Traceback" in again.output:
            found.append(Finding(FAILED, f"repeated: exit {again.code}: {again.output}"))
        swept = plain("alias", "set", "swept", world.digests["a"], "--home", place.home)
        if swept.code:
            found.append(Finding(FAILED, f"afterwards: exit {swept.code}: {swept.output}"))
        found += check(place.home, row.after(world))
        if row.gives and not place.out.exists():
            found.append(Finding(CORRUPT, "the repeated command made no directory"))
    where = f"{row.name}, {call} {number}"
    result.findings += [Finding(each.kind, f"{where}: {each.what}") for each in found]
    return True


def _promised(row: Row, world: World, home: Path) -> list[Finding]:
    """What the struck command, which said that it was done, has done; litter is the next update's."""
    lost = [each for each in check(home, row.after(world)) if each.kind == LOST]
    return [each for each in lost if not (row.empties and each.what.startswith("noted: the index was missing"))]
