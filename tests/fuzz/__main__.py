"""`python -m tests.fuzz`: every target on what is kept, then on damaged inputs, as many or for as long as is asked."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.hunt import Hunt, generated, hunt, kept, save
from tests.fuzz.targets import Target, make_targets

_ROUND = 500


def main() -> None:
    """Exit with 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=_ROUND, help="inputs for each target")
    parser.add_argument("--minutes", type=float, help="instead of a count: rounds over all targets, for so long")
    parser.add_argument("--seed", type=int, default=0, help="other seeds, other inputs")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where to keep what was found")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        targets = make_targets(Path(scratch))
        chosen = [targets[name] for name in options.target or targets]
        totals = {target.name: Hunt() for target in chosen}
        for target in chosen:
            known = range(len(target.seeds) + len(target.corpus))
            _add(totals[target.name], hunt(target, kept(target), known, Path(scratch)), options.findings)
        started, begun = time.monotonic(), 0
        while begun == 0 or (options.minutes and time.monotonic() - started < options.minutes * 60):
            count = _ROUND if options.minutes else options.count
            for target in chosen:
                numbers = range(begun, begun + _share(target, count))
                _add(
                    totals[target.name],
                    hunt(target, generated(target, options.seed), numbers, Path(scratch)),
                    options.findings,
                )
            begun += count
    for name, total in totals.items():
        print(f"{name:<16} {total.inputs:>8} inputs  {total.accepted:>8} accepted  {len(total.findings):>4} findings")
    sys.exit(any(total.findings for total in totals.values()))


def _share(target: Target, count: int) -> int:
    """Whole registries are slow to ask, and searches are ten at once."""
    return max(1, count // (20 if target.name.startswith("stored") else 5 if target.name == "search" else 1))


def _add(total: Hunt, more: Hunt, findings: Path) -> None:
    total.inputs += more.inputs
    total.accepted += more.accepted
    total.findings += more.findings
    save(more.findings, findings)


if __name__ == "__main__":
    main()
