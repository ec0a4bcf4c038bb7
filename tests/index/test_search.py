"""Searches: the same as looking at every adapter, however they are answered, and never by looking at every adapter."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from registry.core import records
from registry.core.digest import Digest
from registry.core.records import Record
from registry.core.search import NEWEST, NOT_COMPARED, OPERATORS, Criteria, Order, ScoreBound
from registry.core.summary import AdapterSummary, ExportSummary
from registry.index import Database, Index
from registry.index.search import FEW
from tests.support.synthetic import BASES, OLD_RANK, Synthetic, named
from tests.support.values import digest_of

Make = Callable[..., Record]
ALL = 1 << 20
NAMES = ("a", "b", "c", "d", "e", "f", "g")
RUNS = ("r1", "r2", None)
METRICS = ("accuracy", "loss")
VALUES = (0.25, 0.5, 0.75)


def export_meets(export: ExportSummary, criteria: Criteria) -> bool:
    first, last = criteria.iterations or (None, None)
    return (
        (criteria.run is None or export.run == criteria.run)
        and (criteria.checkpoint is None or export.checkpoint == criteria.checkpoint)
        and (criteria.base is None or export.base == criteria.base)
        and (criteria.iterations is None or export.iteration is not None)
        and (first is None or (export.iteration is not None and export.iteration >= first))
        and (last is None or (export.iteration is not None and export.iteration <= last))
    )


def meets(adapter: AdapterSummary, criteria: Criteria) -> bool:
    return (
        any(export_meets(each, criteria) for each in adapter.exports)
        and (criteria.tensors is None or adapter.tensor_digest == criteria.tensors)
        and (criteria.r is None or adapter.r == criteria.r)
        and (criteria.alpha is None or adapter.lora_alpha == criteria.alpha)
        and (criteria.verdict is None or (adapter.verdict or NOT_COMPARED) == criteria.verdict)
        and (criteria.alias is None or criteria.alias in adapter.aliases)
        and (criteria.since is None or adapter.first_exported_at >= criteria.since)
        and (criteria.until is None or adapter.first_exported_at < criteria.until)
        and all(each.metric in adapter.scores and each.holds(adapter.scores[each.metric]) for each in criteria.scores)
    )


def place(adapter: AdapterSummary, criteria: Criteria, order: Order) -> Any:
    """By what an adapter is sorted; None if the order does not list it."""
    if order.by == "score":
        return adapter.scores.get(str(order.metric))
    if order.by == "iteration":
        met = (each.iteration for each in adapter.exports if export_meets(each, criteria))
        stated = [iteration for iteration in met if iteration is not None]
        return None if not stated else (max if order.descending else min)(stated)
    return adapter.first_exported_at


def naive(everything: list[AdapterSummary], criteria: Criteria, order: Order, limit: int) -> list[Digest]:
    listed = [
        (key, adapter.digest)
        for adapter in everything
        if meets(adapter, criteria) and (key := place(adapter, criteria, order)) is not None
    ]
    return [digest for _, digest in sorted(listed, reverse=order.descending)[:limit]]


@pytest.fixture
def make(exported: Make, compared: Make, moved: Make, scored: Make, removed: Make) -> dict[str, Make]:
    return {"exported": exported, "compared": compared, "moved": moved, "scored": scored, "removed": removed}


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


NAME, DAY = one_of(*NAMES), st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(one_of("exported"), NAME, DAY, one_of(*RUNS), one_of(1, 2, 3, None), st.integers(0, 11)),
    st.tuples(one_of("compared"), NAME, DAY, one_of("one", "two"), one_of("identical", "base-only")),
    st.tuples(one_of("scored"), NAME, DAY, one_of("completed", "stopped"), one_of(*METRICS), one_of(*VALUES)),
    st.tuples(one_of("moved"), NAME, st.integers(1, 9)),
    st.tuples(one_of("removed"), NAME),
)
TIMES = one_of(*(f"2026-01-{day:02}T00:00:00.000000Z" for day in (1, 2, 3, 4)))
BOUND = st.builds(ScoreBound, one_of(*METRICS), one_of(*OPERATORS), one_of(*VALUES))
CRITERION = st.one_of(
    st.tuples(st.just("run"), one_of("r1", "r2", "unknown")),
    st.tuples(st.just("iterations"), one_of((1, 1), (2, None), (None, 2), (None, None), (2, 3))),
    st.tuples(st.just("checkpoint"), one_of(*(digest_of(f"checkpoint {n}") for n in range(3)), digest_of("unknown"))),
    st.tuples(st.just("base"), one_of("org/base", "other", "")),
    st.tuples(st.just("tensors"), one_of(digest_of("tensors 0"), digest_of("tensors 1"))),
    st.tuples(st.just("r"), one_of(4, 8)),
    st.tuples(st.just("alpha"), one_of(8.0, 16.0)),
    st.tuples(st.just("verdict"), one_of(NOT_COMPARED, "identical", "base-only")),
    st.tuples(st.just("alias"), one_of("best", "Best")),
    st.tuples(st.just("scores"), st.lists(BOUND, min_size=1, max_size=2).map(tuple)),
    st.tuples(st.just("since"), TIMES),
    st.tuples(st.just("until"), TIMES),
)
CRITERIA = st.lists(CRITERION, max_size=3).map(lambda chosen: Criteria(**dict(chosen)))
ORDERS = st.builds(Order, one_of("newest", "oldest", "iteration", "score"), one_of(*METRICS), st.booleans()).map(
    lambda order: order if order.by == "score" else Order(order.by, None, order.reversed)
)


def history(make: dict[str, Make], steps: list[tuple[Any, ...]]) -> list[Record]:
    """Records as the steps say; an adapter's settings, tensors and base follow from its name."""
    there: list[str] = []
    made: list[Record] = []
    for kind, name, *rest in steps:
        if kind == "exported":
            day, run, iteration, nth = rest
            origin = {"checkpoint": f"checkpoint {nth % 3}", "id": run, "iteration": iteration}
            record = make["exported"](name, at=day, tensors=f"tensors {ord(name) % 2}", **origin)
            says = record.predicate
            says["lora"] = {"r": 4 if name < "d" else 8, "lora_alpha": 8 if name in "ad" else 16}
            says["base"] = {**says["base"], "name": ("org/base", "other", None)[nth % 3 if name > "b" else 0]}
            made.append(records.make(records.EXPORT, record.subject, says))
            there.append(name)
        elif name not in there:
            continue
        elif kind == "compared":
            made.append(make["compared"](name, at=rest[0], **{rest[1]: rest[2]}))
        elif kind == "scored":
            made.append(make["scored"](name, at=rest[0], status=rest[1], **{rest[2]: rest[3]}))
        elif kind == "moved":
            made.append(make["moved"]("best", rest[0], after=name))
        else:
            made.append(make["removed"](name))
    return made


QUESTIONS = st.lists(st.tuples(CRITERIA, ORDERS, st.integers(1, 8)), min_size=12, max_size=12)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=24), questions=QUESTIONS)
def test_a_search_finds_what_looking_at_every_adapter_finds_before_and_after_a_rebuild(
    steps: list[tuple[Any, ...]], questions: list[tuple[Criteria, Order, int]], make: dict[str, Make], index: Index
) -> None:
    index.rebuild([], lambda *_: None)
    made = history(make, steps)
    for record in made:
        index.add([record])
    everything = index.newest(ALL)
    expected = [naive(everything, *question) for question in questions]
    for _ in range(2):
        for question, digests in zip(questions, expected, strict=True):
            for few in (0, FEW):  # read in order, and sorted from a source
                assert [each.digest for each in index.find(*question, few=few)[0]] == digests
        index.rebuild(sorted(made, key=lambda each: (each.subject, each.kind != records.EXPORT)), lambda *_: None)


def test_an_adapter_of_several_exports_is_listed_once_and_equal_ones_by_digest(
    index: Index, make: dict[str, Make]
) -> None:
    """Where rows are read in order, it comes up for every base and iteration that it has."""
    steps = [("exported", name, 1, "r1", iteration, iteration) for name in "cd" for iteration in (1, 2)]
    index.add(history(make, steps))
    first, second = sorted(map(digest_of, "cd"))
    for few in (0, FEW):
        for by in ("newest", "iteration"):
            for criteria in (
                Criteria(),
                Criteria(alpha=16.0),
                Criteria(verdict=NOT_COMPARED),
                Criteria(iterations=(1, 2)),
            ):
                found, _ = index.find(criteria, Order(by), 9, few)
                expected = [each for each in (second, first) if criteria.alpha is None or each == digest_of("c")]
                assert [each.digest for each in found] == expected
                found, _ = index.find(criteria, Order(by, reversed=True), 9, few)
                assert [each.digest for each in found] == expected[::-1]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Index]:
    """20,000 adapters of 40 runs."""
    database = tmp_path_factory.mktemp("large") / "index.sqlite"
    index = Index(Database(str(database)))
    index.rebuild(SYNTHETIC.records(), lambda _, error: pytest.fail(str(error)))
    return database, index


SYNTHETIC = Synthetic(20_000, 40)
OFTEN, RARELY = ScoreBound("pass@1", ">", 0.1), ScoreBound("pass@1", ">=", 0.999)
MIDDLE = SYNTHETIC.time(10_000)
ALONE = [
    Criteria(),
    Criteria(run="run-00020"),
    Criteria(iterations=(7, 7)),
    Criteria(iterations=(2, None)),
    Criteria(checkpoint=named("checkpoint", 3)),
    Criteria(tensors=named("tensors", 0)),
    Criteria(base=BASES[0]),
    Criteria(r=16),
    Criteria(alpha=16.0),
    Criteria(verdict="base-only"),
    Criteria(verdict=NOT_COMPARED),
    Criteria(alias="alias-3"),
    Criteria(scores=(OFTEN,)),
    Criteria(scores=(RARELY,)),
    Criteria(since=MIDDLE),
    Criteria(until=MIDDLE),
]
TOGETHER = [
    Criteria(run="run-00020", iterations=(3, None), base=BASES[0]),
    Criteria(r=OLD_RANK, since=MIDDLE),
    Criteria(base=BASES[0], iterations=(1, None), scores=(OFTEN,)),
    Criteria(verdict="identical", scores=(OFTEN,), since=MIDDLE),
    Criteria(scores=(OFTEN, ScoreBound("pass@1", "<", 0.9), ScoreBound("loss", "<=", 0.5))),
    Criteria(checkpoint=named("checkpoint", 3), run="run-00000", tensors=named("tensors", 3), alias="alias-0"),
]
ORDERED = [Order(by, metric, reverse) for by, metric in (
    ("newest", None), ("oldest", None), ("iteration", None), ("score", "pass@1")
) for reverse in (False, True)]  # fmt: skip
EQUAL = {f"USE TEMP B-TREE FOR {part} OF ORDER BY" for part in ("RIGHT PART", "LAST TERM")}
"""Rows with one key are sorted by digest; the keys come in order."""
SMALL = {"facets"}
"""Tables that have as many rows as there are combinations of a few settings."""


def steps(database: Path, statements: list[tuple[str, Any]]) -> set[tuple[str, str]]:
    """How SQLite answers: every step, with the one that it is a part of."""
    found = set()
    with sqlite3.connect(database) as connection:
        for statement, parameters in statements:
            if statement.startswith("SELECT"):
                plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
                said = {number: step for number, _, _, step in plan}
                found |= {(said.get(parent, ""), step) for _, parent, _, step in plan}
    connection.close()
    return found


@pytest.mark.parametrize("few", [0, FEW])
@pytest.mark.parametrize("order", ORDERED, ids=str)
def test_every_search_reads_by_an_index_and_sorts_no_more_than_few_or_what_is_equal(
    order: Order, few: int, large: tuple[Path, Index]
) -> None:
    database, index = large
    for criteria in ALONE + TOGETHER:
        statements: list[tuple[str, Any]] = []

        def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            statements.append((statement, parameters))  # noqa: B023  called before the next one

        event.listen(Engine, "before_cursor_execute", note)
        try:
            found, unknown = index.find(criteria, order, 5, few)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert unknown == []
        rows = [each for each in statements if each[0].startswith("SELECT adapters.id")]
        assert bool(rows) or not found
        taken = steps(database, statements)
        scanned = {step.split()[1] for _, step in taken if step.startswith("SCAN")}
        assert scanned <= SMALL | {"(subquery-1)", "anon_1", "CONSTANT"}, (criteria, scanned)
        held_against = {step for whole, step in taken if whole.startswith("CORRELATED") and step.startswith("SEARCH")}
        assert all(step.endswith("(adapter_id=?)") for step in held_against), (criteria, held_against)
        for statement in rows:
            outer = {step for whole, step in steps(database, [statement]) if not whole}
            if "adapters.id IN (SELECT" in statement[0]:  # from a source that has few
                assert "SEARCH adapters USING INTEGER PRIMARY KEY (rowid=?)" in outer
            else:
                assert {step for step in outer if "ORDER BY" in step} <= EQUAL, (criteria, statement, outer)


@pytest.mark.parametrize("order", ORDERED, ids=str)
def test_searches_of_many_adapters_find_the_same_either_way(order: Order, large: tuple[Path, Index]) -> None:
    for criteria in ALONE + TOGETHER:
        either = [index_find(large[1], criteria, order, few) for few in (0, 1 << 30)]
        assert either[0] == either[1], criteria


def index_find(index: Index, criteria: Criteria, order: Order, few: int) -> list[Digest]:
    return [each.digest for each in index.find(criteria, order, 30, few)[0]]


def test_only_few_candidates_are_sorted(large: tuple[Path, Index]) -> None:
    """What is met by more is read in order."""
    statements: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        for few in (499, 500):
            large[1].find(Criteria(run="run-00020"), NEWEST, 5, few)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    rows = [statement for statement in statements if statement.startswith("SELECT adapters.id")]
    assert ["adapters.id IN (SELECT" in statement for statement in rows] == [False, True]


def test_what_is_asked_for_and_not_known_is_told_only_where_nothing_is_found(large: tuple[Path, Index]) -> None:
    index = large[1]
    asked = Criteria(run="no run", base="no base", alias="none-such", scores=(ScoreBound("no metric", ">", 0),))
    assert index.find(asked, Order("score", "no order"), 5) == (
        [],
        [
            "no run is known as 'no run'",
            "no base is known as 'no base'",
            "no metric is known as 'no metric'",
            "no metric is known as 'no order'",
            "no alias is called 'none-such'",
        ],
    )
    assert index.find(Criteria(r=1), NEWEST, 5) == ([], [])
