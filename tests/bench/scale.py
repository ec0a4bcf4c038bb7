"""How a registry answers at a size that it may reach: 1,000,000 adapters of 2,000 runs, without their tensors.

Usage: python -m tests.bench.scale [--adapters N] [--home DIR]
Prints a table, and writes the same figures to bench-scale.json. A home that is given is kept, and used again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from registry import Registry
from registry.core.search import Order
from registry.index import Database, Index
from tests.bench.measure import Command, alternate, run_once
from tests.support.synthetic import ALIASES, BASES, OLD_RANK, Synthetic, named

ADAPTERS, ADAPTERS_A_RUN = 1_000_000, 500
REINDEXED = 20_000
QUESTIONS = 200
"""Each lookup is timed with so many different keys; each search so many times over ten."""
SHARDS = 256
PROCESSES = 7
INSTANT, QUICK, LINEAGE = 0.002, 0.05, 0.01
REGISTRY = (sys.executable, "-m", "registry.cli")
HEADER = f"{'what':<58}{'median':>10}{'slowest':>10}{'aim':>10}{'found':>8}"


def main() -> None:
    """Build, measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--adapters", type=int, default=ADAPTERS)
    parser.add_argument("--home", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aorlta-scale-", dir=Path.cwd()) as directory:
        rows = []
        print(HEADER)
        for each in bench_scale(Path(directory), asked.adapters, asked.home):
            print(line(each), flush=True)
            rows.append(each)
    Path("bench-scale.json").write_text(json.dumps(rows, indent=2) + "\n")


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    if "records_per_second" in row:
        return f"{row['what']:<58}{row['records_per_second']:>10.0f} records/s"
    if "ratio" in row:
        ratio = f"{row['aim']:>9.1f}x{row['ratio']:>7.2f}x"
        return f"{row['what']:<58}{row['seconds']:>8.3f} s{row['against_seconds']:>8.3f} s{ratio}"
    times = f"{row['seconds'] * 1000:>7.2f} ms{row['slowest'] * 1000:>7.1f} ms{row['aim'] * 1000:>7.0f} ms"
    return f"{row['what']:<58}{times}{row['found']:>8}"


def bench_scale(directory: Path, adapters: int, home: Path | None = None) -> Iterator[dict[str, Any]]:
    """Every question, in process and warm; `show` as a process; and how fast an index is made."""
    large = Synthetic(adapters, max(1, adapters // ADAPTERS_A_RUN))
    home = home or directory / "large"
    if not (home / "index.sqlite").exists():
        home.mkdir(parents=True)
        yield build(large, home)
    keys = [number * adapters // QUESTIONS for number in range(QUESTIONS)]
    for number in keys:
        large.stand_in(home, number)
    fill_shard(large, home, SHARDS // 2)
    registry = Registry(home)
    yield from lookups(registry, large, keys)
    yield from searches(registry, large)
    yield from lineages(registry, large, keys)
    yield processes(directory / "one", large, home, keys)
    yield reindexed(directory / "store")


def build(large: Synthetic, home: Path) -> dict[str, Any]:
    """The index from records in memory. Making those takes time too, which is taken off."""
    started = time.perf_counter()
    count = sum(1 for _ in large.records())
    making = time.perf_counter() - started
    started = time.perf_counter()
    Index(Database(str(home / "index.sqlite"))).rebuild(large.records(), fail)
    seconds = time.perf_counter() - started - making
    return {"what": f"index of {count} records, from memory", "records_per_second": count / seconds, "seconds": seconds}


def fail(_record: Any, error: Exception) -> None:
    """Every synthetic record is sound."""
    raise error


def fill_shard(large: Synthetic, home: Path, shard: int) -> None:
    """Make one of the directories that hold adapters by their first two digits as full as they all would be."""
    for number in range(large.adapters):
        digest = large.digest(number).hex
        if int(digest[:2], 16) == shard:
            (home / "adapters" / digest[:2] / digest).mkdir(parents=True, exist_ok=True)


def timed(what: str, questions: Sequence[Callable[[], Any]], aim: float) -> dict[str, Any]:
    """The median over questions, each asked once; the first of all is asked before, so that the code is warm."""
    questions[0]()
    seconds, found = [], 0
    for question in questions:
        started = time.perf_counter()
        answer = question()
        seconds.append(time.perf_counter() - started)
        found = len(answer) if isinstance(answer, list) else 1
    return {"what": what, "seconds": statistics.median(seconds), "slowest": max(seconds), "aim": aim, "found": found}


def lookups(registry: Registry, large: Synthetic, keys: Sequence[int]) -> Iterator[dict[str, Any]]:
    """References of every kind, and the checkpoint digest."""
    full = [n for n in range(min(large.adapters, 100_000)) if large.digest(n).hex.startswith(f"{SHARDS // 2:02x}")]
    where = {
        "prefix of 12 digits, in a full directory": [large.digest(number).hex[:12] for number in full[:QUESTIONS]],
        "full digest": [str(large.digest(number)) for number in keys],
        "RUN@ITER": [f"{large.run_name(large.run_of(n))}@{large.iteration_of(n)}" for n in keys],
    }
    for what, references in where.items():
        yield timed(what, [lambda reference=each: registry.resolve(reference) for each in references], INSTANT)
    for alias in range(ALIASES):
        large.stand_in(Path(registry.home), large.alias_names(alias))
    names = [f"alias-{number % ALIASES}" for number in range(QUESTIONS)]
    yield timed("alias", [lambda name=each: registry.resolve(name) for each in names], INSTANT)
    last = [large.first_of(run + 1) - 1 for run in range(0, large.runs, max(1, large.runs // QUESTIONS))]
    for number in last:
        large.stand_in(Path(registry.home), number)
    latest = [f"{large.run_name(large.run_of(number))}@latest" for number in last]
    yield timed("RUN@latest", [lambda reference=each: registry.resolve(reference) for each in latest], INSTANT)
    checkpoints = [str(named("checkpoint", number)) for number in keys]
    yield timed("checkpoint digest", [lambda sha=each: registry.find(checkpoint=sha) for each in checkpoints], INSTANT)
    yield timed("show", [lambda n=each: registry.show(large.digest(n).hex) for each in keys], QUICK)


def searches(registry: Registry, large: Synthetic) -> Iterator[dict[str, Any]]:
    """Lists, each criterion alone, and those that are hard together."""
    middle = large.time(large.adapters // 2)
    questions: dict[str, dict[str, Any]] = {
        "list": {},
        "list --sort oldest": {"sort": "oldest"},
        "list --sort iteration": {"sort": "iteration"},
        "list --sort score:pass@1": {"sort": "score:pass@1"},
        "list --sort score:pass@1 --reverse": {"sort": Order("score", "pass@1", reversed=True)},
        "find --run": {"run": large.run_name(large.runs // 2)},
        "find --run --iter 10..20": {"run": large.run_name(large.runs // 2), "iterations": (10, 20)},
        "find --run --sort iteration": {"run": large.run_name(large.runs // 2), "sort": "iteration"},
        "find --iter 7": {"iterations": 7},
        "find --iter 100..": {"iterations": (100, None)},
        "find --tensors": {"tensors": str(named("tensors", 0))},
        "find --base": {"base": BASES[1]},
        "find --r 16": {"r": 16},
        "find --alpha 16": {"alpha": 16.0},
        "find --alias": {"alias": "alias-3"},
        "find --verdict none": {"verdict": "none"},
        "find --verdict base-only": {"verdict": "base-only"},
        "find --score pass@1>0.4": {"scores": ["pass@1>0.4"]},
        "find --score pass@1>0.4 --sort score:pass@1": {"scores": ["pass@1>0.4"], "sort": "score:pass@1"},
        "find --score pass@1<0.4 --sort score:pass@1": {"scores": ["pass@1<0.4"], "sort": "score:pass@1"},
        "find --since --until, a month in the middle": {"since": middle, "until": large.time(large.adapters * 5 // 8)},
        "hard: --r 64, the oldest only": {"r": OLD_RANK},
        "hard: --r 64 --since, nothing": {"r": OLD_RANK, "since": middle},
        "hard: --verdict different, 20 of all": {"verdict": "different"},
        "hard: --verdict different --iter 1..": {"verdict": "different", "iterations": (1, None)},
        "hard: --verdict different --sort iteration": {"verdict": "different", "sort": "iteration"},
        "hard: --verdict different --score pass@1>0.1": {"verdict": "different", "scores": ["pass@1>0.1"]},
        "hard: --base --r 16 --iter 3..": {"base": BASES[2], "r": 16, "iterations": (3, None)},
        "hard: --score pass@1>0.9 --score loss>0.9, never both": {"scores": ["pass@1>0.9", "loss>0.9"]},
        "hard: --score pass@1>0.4 --score pass@8>0.7, never both": {"scores": ["pass@1>0.4", "pass@8>0.7"]},
        "hard: --verdict identical --score pass@1>0.4, never both": {"verdict": "identical", "scores": ["pass@1>0.4"]},
        "hard: --iter ..20 --since, never both for an old run": {"iterations": (None, 20), "since": middle},
    }
    for what, criteria in questions.items():
        yield timed(what, [lambda criteria=criteria: registry.find(**criteria)] * (QUESTIONS // 20), QUICK)


def lineages(registry: Registry, large: Synthetic, keys: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Where adapters come from, and what was trained from them."""
    lineage = getattr(registry, "lineage", None)
    if lineage is not None:
        yield timed("lineage", [lambda n=each: lineage(large.digest(n).hex) for each in keys], LINEAGE)


def processes(one: Path, large: Synthetic, home: Path, keys: Sequence[int]) -> dict[str, Any]:
    """`show` as a whole process, against the same in a registry of one adapter."""
    small = Synthetic(1, 1)
    small.stand_in(one, 0)
    run_once(Command((*REGISTRY, "reindex", "--home", str(one))))
    show = (*REGISTRY, "show", "--json")
    figures = alternate(
        {
            "large": Command((*show, large.digest(keys[1]).hex, "--home", str(home))),
            "one": Command((*show, small.digest(0).hex, "--home", str(one))),
        },
        PROCESSES,
    )
    return {
        "what": "show as a process, against one adapter",
        "seconds": figures["large"].seconds,
        "against_seconds": figures["one"].seconds,
        "ratio": figures["large"].seconds / figures["one"].seconds,
        "aim": 1.3,
    }


def reindexed(home: Path) -> dict[str, Any]:
    """`reindex` of a store on disk."""
    Synthetic(REINDEXED, REINDEXED // ADAPTERS_A_RUN).write(home)
    done = Registry(home).reindex()
    count = sum(done.records.values())
    return {"what": f"reindex of {count} records on disk", "records_per_second": done.rate, "seconds": done.seconds}


if __name__ == "__main__":
    main()
