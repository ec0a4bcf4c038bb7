"""Searches: the same as looking at every adapter, however they are answered, and never by looking at every adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.core import records
from registry.core.digest import Digest
from registry.core.records import Record
from registry.core.search import NOT_COMPARED, OPERATORS, Criteria, Order, ScoreBound
from registry.core.summary import AdapterSummary, ExportSummary
from registry.index import Index
from registry.index.search import FEW
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


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
