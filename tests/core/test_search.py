"""What a person asks for in a search, read into values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core import search
from registry.core.errors import Refused
from registry.core.search import OPERATORS, Order, ScoreBound


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("pass@1>0.4", ScoreBound("pass@1", ">", 0.4)),
        ("pass@1>=0.4", ScoreBound("pass@1", ">=", 0.4)),
        ("loss < 2", ScoreBound("loss", "<", 2)),
        ("loss<=-1e-3", ScoreBound("loss", "<=", -0.001)),
        ("a=0", ScoreBound("a", "=", 0)),
        ("a>b=1", ScoreBound("a>b", "=", 1)),
        ("a==1", ScoreBound("a=", "=", 1)),
        ("a<b>c>=1", ScoreBound("a<b>c", ">=", 1)),
        ("über 9000 >1", ScoreBound("über 9000", ">", 1)),
    ],
)
def test_a_bound_is_split_at_its_last_operator(text: str, bound: ScoreBound) -> None:
    assert search.score_bound(text) == bound


@pytest.mark.parametrize("text", ["", ">", "a", "a>", "a>b", ">1", " >1", "a>nan", "a>inf", "a>1<b", "a!1", "a>1 2"])
def test_what_is_no_bound_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"--score: no bound on a score.*pass@1>0\.4"):
        search.score_bound(text)


@given(
    metric=st.text(min_size=1).filter(lambda text: text.strip() == text and text[-1] not in "<>="),
    operator=st.sampled_from(sorted(OPERATORS)),
    value=st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_bound_on_any_metric_is_read_as_it_was_meant(metric: str, operator: str, value: float) -> None:
    assert search.score_bound(f"{metric}{operator}{value}") == ScoreBound(metric, operator, value)


@pytest.mark.parametrize(
    ("text", "ends"),
    [("7", (7, 7)), ("2..9", (2, 9)), ("2..", (2, None)), ("..9", (None, 9)), ("3..3", (3, 3)), (" 0 ", (0, 0))],
)
def test_iterations_are_one_or_a_range_that_may_be_open(text: str, ends: tuple[int | None, int | None]) -> None:
    assert search.iterations(text) == ends


@pytest.mark.parametrize("text", ["", "..", "-1", "1.5", "1...2", "9..2", "1..2..3", "x", "٣", "1" * 19])
def test_what_is_no_range_of_iterations_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="--iter"):
        search.iterations(text)


def test_an_iteration_that_no_index_holds_is_refused() -> None:
    assert search.iteration_range(4) == (4, 4)
    with pytest.raises(Refused, match="--iter"):
        search.iteration_range((1, 2**63))


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("2026-11-01", "2026-11-01T00:00:00.000000Z", "2026-11-02T00:00:00.000000Z"),
        ("20261101", "2026-11-01T00:00:00.000000Z", "2026-11-02T00:00:00.000000Z"),
        ("2026-11-01T12:30", "2026-11-01T12:30:00.000000Z", "2026-11-01T12:30:00.000000Z"),
        ("2026-11-01 12:30:00.5Z", "2026-11-01T12:30:00.500000Z", "2026-11-01T12:30:00.500000Z"),
        ("2026-11-01T00:30+02:00", "2026-10-31T22:30:00.000000Z", "2026-10-31T22:30:00.000000Z"),
        ("9999-12-31", "9999-12-31T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_dates_are_utc_as_records_write_them_and_an_end_includes_its_day(text: str, since: str, until: str) -> None:
    assert (search.since(text), search.until(text)) == (since, until)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026", "0001-01-01T00:00+05:00", "\x1b[2J"])
def test_what_is_no_date_is_refused(text: str) -> None:
    for read, option in ((search.since, "--since"), (search.until, "--until")):
        with pytest.raises(Refused, match=option):
            read(text)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("newest", Order()),
        ("oldest", Order("oldest")),
        ("iteration", Order("iteration")),
        ("score:pass@1", Order("score", "pass@1")),
        ("score:score:", Order("score", "score:")),
    ],
)
def test_an_order_is_one_of_three_or_a_metric(text: str, order: Order) -> None:
    assert search.order(text) == order
    assert search.order(text, reverse=True) == Order(order.by, order.metric, reversed=True)


@pytest.mark.parametrize("text", ["", "score", "score:", "NEWEST", "r"])
def test_what_is_no_order_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="--sort: no such order"):
        search.order(text)


def test_the_largest_comes_first_but_for_the_oldest() -> None:
    orders = (Order(), Order("iteration"), Order("score", "x"), Order("oldest"))
    assert [each.descending for each in orders] == [True, True, True, False]
    assert [Order(each.by, each.metric, reversed=True).descending for each in orders] == [False, False, False, True]


def test_verdicts_and_numbers_are_checked() -> None:
    assert search.verdict("none") == "none"
    assert search.verdict("base-only") == "base-only"
    for read, value in ((search.verdict, "good"), (search.rank, 2**63), (search.alpha, float("nan"))):
        with pytest.raises(Refused):
            read(value)
