"""`python -m tests.soak`: kills, faults and a crowd, one after the other, and then the numbers."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.soak.commands import ROWS, make_world
from tests.soak.crowd import crowd
from tests.soak.struck import faults, kills

_SHARES = (0.4, 0.3, 0.3)


def main() -> None:
    """Exit with 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=4, help="for all together")
    parser.add_argument("--seed", type=int, default=0, help="another order, another crowd")
    parser.add_argument("--processes", type=int, default=16, help="commands at once")
    parser.add_argument("--points", type=int, help="so many kills and so many faults, however long that takes")
    parser.add_argument("--every", action="store_const", dest="points", const=sys.maxsize, help="strike at every point")
    parser.add_argument("--command", action="append", help="kill and fault only this one, as `gc`; repeatable")
    parser.add_argument("--only-crowd", action="store_true", help="all the time for the commands at once")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.command or row.name in options.command]
    shares = (0, 0, 1) if options.only_crowd else _SHARES
    seconds = [options.minutes * 60 * share for share in shares]
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        scratch = Path(name)
        world = make_world(scratch / "world")
        killed = kills(rows, world, scratch, options.seed, seconds[0], options.points)
        failed = faults(rows, world, scratch, options.seed, seconds[1], options.points)
        load = crowd(world, scratch, options.seed, seconds[2], options.processes)
    findings = [*killed.findings, *failed.findings, *load.findings]
    for finding in findings[:50]:
        print(f"FOUND {finding.kind}: {finding.what}", file=sys.stderr)
    for row in sorted({*killed.points, *failed.points}):
        print(f"{row:<16} {killed.points[row]:>6} kills  {failed.points[row]:>6} faults", file=sys.stderr)
    for command, times in sorted(load.operations.items()):
        print(f"{command:<16} {times:>6} at once", file=sys.stderr)
    counts = Counter(finding.kind for finding in findings)
    summary = {
        "seed": options.seed,
        "kills": killed.points.total(),
        "every_kill_point": killed.complete,
        "faults": failed.points.total(),
        "every_fault_point": failed.complete,
        "operations": load.operations.total(),
        "killed_at_random": load.killed,
        "acknowledged": load.promises,
        "reads": killed.reads + failed.reads + load.reads,
        **{kind: counts[kind] for kind in ("lost", "corrupt", "litter", "failed")},
    }
    print(json.dumps(summary, indent=2))
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
