"""Lineage as the index walks it: the whole graph and nothing else, no loops, in time."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from registry.core import records
from registry.core.lineage import STARTS, Edge, Kind, Lineage, Link, Start
from registry.core.records import Record
from registry.index import Database, Index, ancestry
from tests.support.values import digest_of

Make = Callable[..., Record]


def walk(
    index: Index,
    kind: Kind,
    name: str,
    *,
    up: bool = True,
    down: bool = True,
    depth: int | None = None,
    limit: int = 200,
) -> Lineage:
    """The lineage of an adapter, a checkpoint or a run that is known, by what it is called in these tests."""
    start = Start(kind, name if kind is Kind.RUN else digest_of(name).hex)
    found = index.lineage(start, up=up, down=down, depth=depth, limit=limit)
    assert found is not None
    return found


def adapters(lineage: Lineage) -> set[str]:
    return {node.facts["digest"] for node in lineage.nodes if node.kind is Kind.ADAPTER}


def digests(*names: str) -> set[str]:
    return {str(digest_of(name)) for name in names}


def runs(lineage: Lineage) -> set[str]:
    return {node.facts["name"] for node in lineage.nodes if node.kind is Kind.RUN}


@pytest.fixture
def chain(exported: Make) -> list[Record]:
    """Five runs, each started from what the one before exported at iteration 2 of 3."""
    made = []
    for number in range(5):
        start = digest_of(f"a{number - 1}.2").hex if number else None
        made += [
            exported(
                f"a{number}.{each}",
                checkpoint=f"c{number}.{each}",
                tensors=f"t{number}.{each}",
                id=f"r{number}",
                iteration=each,
                warm_start=start,
                resumed_from=None,
            )
            for each in range(3)
        ]
    return made


def test_up_shows_the_path_only_and_down_only_what_came_of_it(index: Index, chain: list[Record]) -> None:
    index.add(chain)
    up = walk(index, Kind.ADAPTER, "a2.2", down=False)
    assert adapters(up) == digests("a2.2", "a1.2", "a0.2")
    assert [node.facts["name"] for node in up.nodes if node.kind is Kind.BASE] == ["org/base"]
    down = walk(index, Kind.ADAPTER, "a2.2", up=False)
    assert adapters(down) == digests("a2.2", *(f"a{run}.{each}" for run in (3, 4) for each in range(3)))
    assert runs(down) == {"r3", "r4"}
    both = walk(index, Kind.ADAPTER, "a2.2")
    assert adapters(both) == adapters(up) | adapters(down) | digests("a2.0", "a2.1"), "and the order in its own run"
    assert adapters(walk(index, Kind.ADAPTER, "a2.1", up=False)) == digests("a2.1"), (
        "a sibling's children are not its own"
    )


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 9])
def test_depth_counts_the_steps_from_run_to_run(depth: int, index: Index, chain: list[Record]) -> None:
    index.add(chain)
    numbers = range(5)
    assert runs(walk(index, Kind.ADAPTER, "a4.0", depth=depth, down=False)) == {
        f"r{each}" for each in numbers if 4 - each <= depth
    }
    assert runs(walk(index, Kind.RUN, "r0", depth=depth, up=False)) == {f"r{each}" for each in numbers if each <= depth}
    assert runs(walk(index, Kind.CHECKPOINT, "c2.2", depth=depth)) == {
        f"r{each}" for each in numbers if abs(2 - each) <= depth
    }


def test_what_is_not_known_has_no_lineage(index: Index, chain: list[Record]) -> None:
    index.add(chain)
    for kind, name in (
        (Kind.ADAPTER, digest_of("c0.0").hex),
        (Kind.CHECKPOINT, digest_of("a0.0").hex),
        (Kind.RUN, "r"),
        (Kind.RUN, ""),
    ):
        assert index.lineage(Start(kind, name), up=True, down=True, depth=None, limit=9) is None


def test_limit_lists_the_first_iterations_and_what_others_started_from_and_counts_the_rest(
    index: Index, exported: Make
) -> None:
    def made(run: str, number: int, start: str | None) -> Record:
        name = f"{run}{number}"
        return exported(
            name,
            checkpoint=f"c{name}",
            tensors=f"t{name}",
            id=run,
            iteration=number,
            warm_start=start,
            resumed_from=None,
        )

    index.add([made("x", number, None) for number in range(9)])
    index.add([made("y", number, digest_of("x7").hex) for number in range(5)])
    root = walk(index, Kind.RUN, "x", limit=3)
    assert adapters(root) == digests("x0", "x1", "x2", "x7", "y0", "y1", "y2")
    assert [(each.of.partition("#")[0], each.exports) for each in root.left_out] == [("run:x", 5), ("run:y", 2)]
    asked = walk(index, Kind.ADAPTER, "x8", limit=3)
    assert adapters(asked) == digests("x0", "x1", "x2", "x8"), "what is asked for is shown, wherever it stands"
    assert [each.exports for each in asked.left_out] == [5]
    assert not walk(index, Kind.RUN, "x").left_out


def test_total_is_limited_and_every_run_is_told_all_the_same(
    index: Index, exported: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ancestry, "TOTAL", 10)
    start = digest_of("root").hex
    made = [exported("root", checkpoint="root", tensors="root", id="root", warm_start=None, resumed_from=None)]
    made += [
        exported(
            f"{run}.{each}",
            checkpoint=f"{run}.{each}",
            tensors=f"{run}.{each}",
            id=f"r{run}",
            iteration=each,
            warm_start=start,
            resumed_from=None,
        )
        for run in range(6)
        for each in range(4)
    ]
    index.add(made)
    found = walk(index, Kind.ADAPTER, "root", up=False)
    assert runs(found) == {f"r{run}" for run in range(6)}
    assert len(adapters(found)) == 1 + 10
    assert sum(each.exports for each in found.left_out) == 24 - 10
    assert len(adapters(walk(index, Kind.ADAPTER, "root", up=False, limit=2))) == 1 + 10, "two of each of five"


def test_both_ways_to_look_for_children_find_the_same(
    index: Index, chain: list[Record], exported: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = exported(
        "m", checkpoint="m", tensors="m", id="m", iteration=1, warm_start=None, resumed_from=digest_of("c1.1").hex
    )
    by_tensors = exported(
        "n", checkpoint="n", tensors="n", id="n", iteration=1, warm_start=digest_of("t3.0").hex, resumed_from=None
    )
    index.add([*chain, more, by_tensors])
    few = walk(index, Kind.RUN, "r0", up=False)
    assert runs(few) == {"r0", "r1", "r2", "r3", "r4", "m", "n"}
    for many in (0, 1_000_000):
        monkeypatch.setattr(ancestry.kinship, "how_many_started", lambda _, many=many: many)
        assert walk(index, Kind.RUN, "r0", up=False) == few


def test_comparisons_and_score_runs_of_it_and_its_descendants_are_told(
    index: Index, chain: list[Record], compared: Make, scored: Make, moved: Make
) -> None:
    index.add(chain)
    index.add([compared("a0.2", one="identical", two="partial"), scored("a1.0", accuracy=0.5)])
    index.add([scored("a0.1", accuracy=0.25), moved("best", 1, after="a0.2"), moved("also", 1, after="a0.2")])
    found = walk(index, Kind.ADAPTER, "a0.2")
    told = {(node.kind, node.facts.get("engine")) for node in found.nodes if node.kind in (Kind.COMPARISON, Kind.SCORE)}
    assert told == {(Kind.COMPARISON, "one"), (Kind.COMPARISON, "two"), (Kind.SCORE, None)}
    (score,) = (node for node in found.nodes if node.kind is Kind.SCORE)
    assert score.facts["scores"] == {"accuracy": 0.5}
    assert Edge(f"adapter:{digest_of('a1.0').hex}", score.key, Link.SCORED) in found.edges
    (asked,) = (node for node in found.nodes if node.key in found.asked)
    assert asked.facts["aliases"] == ["also", "best"]
    assert {node.kind for node in walk(index, Kind.ADAPTER, "a0.2", down=False).nodes} == {
        Kind.BASE,
        Kind.RUN,
        Kind.CHECKPOINT,
        Kind.ADAPTER,
    }


@pytest.fixture
def statements() -> Iterator[list[tuple[str, Any]]]:
    """Every statement that is executed, with its parameters."""
    found: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        found.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


def test_walk_uses_an_index_in_every_step_and_a_few_queries_for_a_generation(
    index: Index,
    database: Path,
    chain: list[Record],
    compared: Make,
    scored: Make,
    exported: Make,
    statements: list[tuple[str, Any]],
) -> None:
    resumed = exported("m", checkpoint="m", tensors="m", id="m", warm_start=None, resumed_from=digest_of("c1.1").hex)
    index.add([*chain, resumed, compared("a1.1", one="identical"), scored("a1.1", accuracy=1)])
    statements.clear()
    walk(index, Kind.ADAPTER, "a4.1", down=False)
    up = len(statements)
    walk(index, Kind.ADAPTER, "a0.2")
    walk(index, Kind.CHECKPOINT, "c1.1")
    walk(index, Kind.RUN, "r1")
    start, resume, checkpoint = (digest_of(each).hex for each in ("a4.1", "c1.1", "c0.0"))
    index.stated_above(warm_start=start, resumed_from=resume, run="r", checkpoint=checkpoint)
    index.known(Kind.ADAPTER, "a", 3)
    index.known(Kind.CHECKPOINT, "a", 3)
    index.knows_run("r1")
    planned = [each for each in statements if each[0].startswith("SELECT")]
    with sqlite3.connect(database) as connection:
        steps = {
            (step[3], statement)
            for statement, parameters in planned
            for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        }
    connection.close()
    assert {step for step in steps if step[0].startswith("SCAN") and step[0] != "SCAN CONSTANT ROW"} == set()
    assert any("ix_stretches_warm_start" in step for step, _ in steps), "or this test could not see it"
    assert any("ix_exports_stretch_id_iteration" in step for step, _ in steps)
    assert up <= 5 * 7, "seven queries a run at most, whatever it exported"


@dataclass(frozen=True)
class Said:
    """One export, of things that are called by numbers. `start` is an adapter, its tensors, or a checkpoint."""

    adapter: int
    checkpoint: int
    run: int | None
    iteration: int | None
    base: int | None
    warm: tuple[str, int] | None
    resumed: int | None

    def record(self, predicate: dict[str, Any], number: int) -> Record:
        run = {
            "id": None if self.run is None else f"run {self.run}",
            "iteration": self.iteration,
            "warm_start": None if self.warm is None else name(*self.warm),
            "resumed_from": None if self.resumed is None else name("c", self.resumed),
        }
        facts = {
            **predicate,
            "checkpoint": {**predicate["checkpoint"], "sha256": name("c", self.checkpoint)},
            "adapter": {**predicate["adapter"], "tensor_digest": name("t", self.adapter // 2)},
            "run": {**predicate["run"], **run},
            "base": {"name": None if self.base is None else f"base {self.base}", "revision": None},
            "exported_at": f"2026-01-01T00:00:{number:02}.000000Z",
        }
        return records.make(records.EXPORT, digest_of(f"a{self.adapter}"), facts)

    @property
    def stretch(self) -> tuple[Any, ...]:
        return (self.run, self.base, self.warm, self.resumed)


def name(kind: str, number: int) -> str:
    """Adapters 0 and 1 have equal tensors, as have 2 and 3, and so on."""
    return digest_of(f"{kind}{number}").hex


SAID = st.builds(
    Said,
    adapter=st.integers(0, 4),
    checkpoint=st.integers(0, 4),
    run=st.none() | st.integers(0, 2),
    iteration=st.none() | st.integers(0, 3),
    base=st.none() | st.integers(0, 1),
    warm=st.none() | st.tuples(st.sampled_from("at"), st.integers(0, 5)),
    resumed=st.none() | st.integers(0, 5),
)


class Truth:
    """The same graph, made the slow way from what was said: nodes are (kind, name), stretches among them."""

    def __init__(self, said: list[Said]) -> None:
        self.said = said
        self.edges: set[tuple[Any, Any, Link]] = set()
        for each in said:
            self.edges |= self.into(each)

    def starts(self, each: Said) -> set[int]:
        if each.warm is None:
            return set()
        kind, number = each.warm
        known = {other.adapter for other in self.said}
        meant = {a for a in known if a == number} if kind == "a" else {a for a in known if a // 2 == number}
        elsewhere = {a for a in meant if any(not self.says_itself(o) for o in self.said if o.adapter == a)}
        return elsewhere or meant

    @staticmethod
    def says_itself(each: Said) -> bool:
        return each.warm in (("a", each.adapter), ("t", each.adapter // 2))

    def own(self, each: Said) -> bool:
        return each.run is not None and any(o.checkpoint == each.resumed and o.run == each.run for o in self.said)

    def unchanged(self, each: Said) -> bool:
        return each.adapter in self.starts(each)

    def head(self, each: Said) -> Any:
        return ("c", each.checkpoint) if each.run is None else ("r", each.stretch)

    def into(self, each: Said) -> set[tuple[Any, Any, Link]]:
        head, checkpoint = self.head(each), ("c", each.checkpoint)
        found: set[tuple[Any, Any, Link]] = set()
        if each.run is not None:
            found.add((head, checkpoint, Link.SAVED))
        if not self.unchanged(each):
            found.add((checkpoint, ("a", each.adapter), Link.EXPORTED))
        if each.base is not None:
            found.add((("b", each.base), head, Link.TRAINED))
        found |= {(("a", start), head, Link.WARM_STARTED) for start in self.starts(each)}
        if each.warm is not None and not self.starts(each):
            found.add((("?", name(*each.warm)), head, Link.WARM_STARTED))
        if each.resumed is not None and not self.own(each):
            found.add((("c", each.resumed), head, Link.RESUMED))
        return found

    def above(self, node: Any) -> set[tuple[Any, Any, Link]]:
        found: set[tuple[Any, Any, Link]] = set()
        ahead = {node}
        while new := {edge for edge in self.edges - found if edge[1] in ahead}:
            found |= new
            ahead = {edge[0] for edge in new}
        return found


def in_truth(lineage: Lineage) -> set[tuple[Any, Any, Link]]:
    """The edges of a lineage in the words of `Truth`; runs by all that they state."""
    words: dict[str, Any] = {}
    numbers = {digest_of(f"{kind}{n}").hex: (kind, n) for kind in "atc" for n in range(9)}
    for node in lineage.nodes:
        if node.kind is Kind.BASE:
            words[node.key] = ("b", int(node.facts["name"].removeprefix("base ")))
        elif node.kind is Kind.RUN:
            base, warm, resumed = (node.facts[key] for key in ("base", "warm_start", "resumed_from"))
            words[node.key] = (
                "r",
                (
                    int(node.facts["name"].removeprefix("run ")),
                    None if base is None else int(base.removeprefix("base ")),
                    None if warm is None else numbers[warm.removeprefix("sha256:")],
                    None if resumed is None else numbers[resumed.removeprefix("sha256:")][1],
                ),
            )
        else:
            hexes = node.facts["digest"].removeprefix("sha256:")
            known = node.kind is Kind.CHECKPOINT or node.facts["known"]
            words[node.key] = numbers[hexes] if known else ("?", hexes)
    return {(words[edge.source], words[edge.target], edge.link) for edge in lineage.edges}


def has_loop(edges: set[tuple[Any, Any, Link]]) -> bool:
    left = set(edges)
    while ends := {edge for edge in left if edge[1] not in {each[0] for each in left}}:
        left -= ends
    return bool(left)


def questions(said: list[Said]) -> Iterator[tuple[Kind, str, Any]]:
    for each in sorted({each.adapter for each in said}):
        yield Kind.ADAPTER, f"a{each}", ("a", each)
    for each in sorted({each.checkpoint for each in said}):
        yield Kind.CHECKPOINT, f"c{each}", ("c", each)
    for each in sorted({each.run for each in said if each.run is not None}):
        yield Kind.RUN, f"run {each}", None


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Index, Index]:
    """Two indexes that every example fills anew."""
    directory = tmp_path_factory.mktemp("pair")
    one, two = (Index(Database(str(directory / each))) for each in ("one", "two"))
    return one, two


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(said=st.lists(SAID, min_size=1, max_size=10), seed=st.integers(0, 99))
def test_every_walk_over_any_records_ends_without_loops_and_is_the_graph_that_they_state(
    said: list[Said], seed: int, predicate: dict[str, Any], pair: tuple[Index, Index]
) -> None:
    truth = Truth(said)
    made = [each.record(predicate, number) for number, each in enumerate(said)]
    index, other = pair
    index.rebuild([], lambda _, error: pytest.fail(str(error)))
    for record in random.Random(seed).sample(made, len(made)):
        index.add([record])
    other.rebuild(made, lambda _, error: pytest.fail(str(error)))
    for kind, called, node in questions(said):
        for up, down in ((True, False), (False, True), (True, True)):
            found = walk(index, kind, called, up=up, down=down)
            assert found == walk(other, kind, called, up=up, down=down), "whatever the order of the records"
            keys = {each.key for each in found.nodes}
            assert set(found.asked) <= keys
            assert all({edge.source, edge.target} <= keys for edge in found.edges)
            edges = in_truth(found)
            assert not has_loop(edges)
            assert edges <= truth.edges
            if node is not None and up and not down:
                whole = truth.above(node)
                assert bool(found.contradictions) == has_loop(whole)
                assert len(found.contradictions) == len(whole - edges)
                assert all(link in STARTS for _, _, link in whole - edges)


@pytest.mark.parametrize("last", ["x", "y", "z"])
def test_of_contradicting_starts_the_last_stated_is_left_out_and_named(last: str, index: Index, exported: Make) -> None:
    starts = {"x": "z", "y": "x", "z": "y"}

    def made(this: str) -> Record:
        start, at = digest_of(starts[this]).hex, 3 if this == last else 1
        return exported(this, at=at, checkpoint=this, tensors=f"t{this}", id=this, warm_start=start)

    index.add(map(made, starts))
    contradictions = set()
    for this in starts:
        for up, down in ((True, False), (False, True), (True, True)):
            found = walk(index, Kind.ADAPTER, this, up=up, down=down)
            contradictions |= set(found.contradictions)
            assert runs(found) == {"x", "y", "z"}
    start = digest_of(starts[last]).short
    assert contradictions == {
        f"run {last} says that it started from adapter {start}, which descends from it; that is left out"
    }


def test_root_with_many_descendants_is_told_with_a_handful_of_queries(
    index: Index, exported: Make, statements: list[tuple[str, Any]]
) -> None:
    made = [exported("root", checkpoint="root", tensors="root", id="root", warm_start=None, resumed_from=None)]
    for run in range(300):
        parent = "root" if run < 100 else f"a{run - 100}"
        made.append(
            exported(f"a{run}", checkpoint=f"c{run}", tensors=f"t{run}", id=f"r{run}", warm_start=digest_of(parent).hex)
        )
    index.add(made)
    statements.clear()
    found = walk(index, Kind.ADAPTER, "root", up=False)
    assert len(adapters(found)) == 301
    assert len(statements) < 40
