"""More that is fuzzed: the files of a score run, what `find` is asked, and lineages of any shape and with any names."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from registry import Registry, RegistryError
from registry.cli import graphs, tree
from registry.core import jsontext, records, search
from registry.core.lineage import Edge, Kind, LeftOut, Link, lineage
from registry.operations.score_files import read_score_run
from tests.support.drawings import MERMAID_LINE, dot_tokens, node_of
from tests.support.scoring import CONFIG, RESULT, result_of, write_score_run

Run = Callable[[bytes, Path], None]

_ENDS = {
    Link.TRAINED: (Kind.BASE, Kind.RUN),
    Link.SAVED: (Kind.RUN, Kind.CHECKPOINT),
    Link.EXPORTED: (Kind.CHECKPOINT, Kind.ADAPTER),
    Link.COMPARED: (Kind.ADAPTER, Kind.COMPARISON),
    Link.SCORED: (Kind.ADAPTER, Kind.SCORE),
    Link.WARM_STARTED: (Kind.ADAPTER, Kind.RUN),
    Link.RESUMED: (Kind.CHECKPOINT, Kind.RUN),
}
_LINKS = tuple(_ENDS)
_NODES = 40  # of each kind
_EDGES = 400

SCORE_RUNS = tuple(
    json.dumps(each).encode()
    for each in (
        result_of("prod", run_id="e", stop={"reason": "done", "detail": {"a": [1]}}),
        result_of("a" * 64, status="stopped", scores={"outer": {"inner": [0.5, {"x": 1}]}, "text": "no", "n": 3}),
    )
)
SCORE_CONFIGS = (
    json.dumps({"run_id": "e", "model": {"adapter": "run@3", "adapter_dir": f"/home/adapters/aa/{'a' * 64}"}}).encode(),
)
ASKED = (
    *(b"pass@1>0.4", b"loss<=-1e-3", b"a>b=1", b"score:pass@1", b"newest", b"base-only", b"sha256:" + b"0" * 64),
    *(b"2..9", b"7", b"..3", b"2026-11-01", b"2026-11-01T12:30:00.5+02:00", b"run", b"best", b"org/base", b"run@3"),
)
LINEAGES = tuple(
    json.dumps({"edges": edges, "names": ["run", "a\nb", '"]; x -> y', "`md` %%{init}%% <b>"]}).encode()
    for edges in (
        [[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0], [4, 0, 0], [5, 0, 1], [1, 1, 1], [6, 1, 2]],
        [[1, 0, 0], [2, 0, 0], [5, 0, 0], [5, 0, 1], [1, 1, 1], [2, 1, 1], [5, 1, 0], [6, 1, 0], [0, 2, 0], [0, 2, 1]],
        [[1 + (n + 1) % 2, n // 2, n // 2] if n % 3 else [5, n, (n * 7) % 11] for n in range(60)],
    )
)


def score_run(name: str) -> Run:
    """Read a score run of which one file is damaged, and make a record of what it says."""
    sound = {RESULT: SCORE_RUNS[0], CONFIG: SCORE_CONFIGS[0]}

    def run(data: bytes, directory: Path) -> None:
        files = sound | {name: data}
        read = read_score_run(str(write_score_run(directory / "eval", files[RESULT], files[CONFIG])))
        says = {"scores": dict(read.scores), "stop": read.stop, "score_run": {"name": read.name}}
        record = records.make(records.SCORE, read.result.digest, says)
        try:
            records.parse(record.data, record.name)
        except RegistryError as error:
            raise AssertionError("what was accepted makes a record that cannot be read back") from error

    return run


def asked(home: Path) -> Run:
    """Take a text for each thing that a search can be asked; then ask it."""

    def run(data: bytes, _directory: Path) -> None:
        text = data.decode("utf-8", "surrogateescape")
        readers: tuple[Callable[[str], object], ...] = (
            *(search.order, search.iterations, search.verdict, search.since, search.until),
            lambda text: search.score_bound(text).holds(0.5),
        )
        for read in readers:
            with suppress(RegistryError):
                read(text)
        registry = _registry(home, os.getpid())
        criteria = ("run", "checkpoint", "base", "tensors", "verdict", "alias", "since", "until", "sort")
        for question in (*({key: text} for key in criteria), {"scores": [text]}, {"iterations": _iterations(text)}):
            with suppress(RegistryError):
                assert len(registry.find(**question, limit=3)) <= 3

    return run


@cache
def _registry(home: Path, _process: int) -> Registry:
    return Registry(home, note=lambda _: None)


def _iterations(text: str) -> tuple[int | None, int | None] | None:
    with suppress(RegistryError):
        return search.iterations(text)
    return None


def draw_lineage(data: bytes, _directory: Path) -> None:
    """Put a lineage together out of any statements, and draw it: no loop, no statement lost, no name more than one."""
    stated = jsontext.parse(data, "lineage")
    texts = stated.get("names") if isinstance(stated, dict) else None
    names = [each for each in texts if isinstance(each, str)] if isinstance(texts, list) else []
    edges = list(dict.fromkeys(_edges(stated.get("edges") if isinstance(stated, dict) else stated)))[:_EDGES]
    keys = sorted({key for edge in edges for key in (edge.source, edge.target)}) or ["run 0"]
    nodes = [node_of(key, names[number % len(names)] if names else key) for number, key in enumerate(keys)]
    left_out = [LeftOut(key, number + 1) for number, key in enumerate(keys[:3])]
    found = lineage([keys[0]], nodes, edges, left_out, _first_stated)
    assert len(found.edges) + len(found.contradictions) == len(edges)
    assert set(found.edges) <= set(edges)
    assert not _has_loop(found.edges), "a loop"
    strings = [value for kind, value in dot_tokens(graphs.dot(found)) if kind == "string"]
    assert all(string.isprintable() for string in strings)
    lines = graphs.mermaid(found).split("\n")
    more = [line for line in lines if not MERMAID_LINE.fullmatch(line)]
    assert len(more) == 2 * len(left_out), more
    assert all(line.isprintable() and len(line) < 1000 for line in tree.tree(found, tree.BOXES).split("\n"))


def _edges(value: Any) -> Iterator[Edge]:
    for each in value if isinstance(value, list) else ():
        if isinstance(each, list) and len(each) == 3 and all(type(number) is int for number in each):
            link = _LINKS[each[0] % len(_LINKS)]
            one, other = _ENDS[link]
            yield Edge(f"{one} {each[1] % _NODES}", f"{other} {each[2] % _NODES}", link)


def _first_stated(targets: Collection[str]) -> Mapping[str, str]:
    return {target: target[::-1] for target in targets if len(target) % 2}


def _has_loop(edges: Collection[Edge]) -> bool:
    count: dict[str, int] = defaultdict(int)
    after: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        count[edge.target] += 1
        after[edge.source].append(edge.target)
    ready, done = [key for key in after if not count[key]], 0
    while ready:
        for target in after[ready.pop()]:
            done += 1
            count[target] -= 1
            if not count[target]:
                ready.append(target)
    return done < len(edges)
