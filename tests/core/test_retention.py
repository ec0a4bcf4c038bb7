"""Retention policies: what they say of themselves in records, and how ages and times are reckoned."""

from __future__ import annotations

import datetime as dt

import pytest

from registry.core.errors import Refused
from registry.core.holds import Hold, HoldKind
from registry.core.retention import Policy, age, ago

NOW = "2026-11-01T12:00:00.000000Z"


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy(keep_last=3), "gc: --keep-last 3"),
        (Policy(before=NOW), f"gc: first exported before {NOW}"),
        (Policy(keep_last=0, keep_aliased=False), "gc: --keep-last 0, --no-keep-aliased"),
        (
            Policy(2, NOW, False, False),
            f"gc: --keep-last 2, first exported before {NOW}, --no-keep-aliased, --no-keep-scored",
        ),
    ],
)
def test_a_policy_says_what_was_asked_and_nothing_else(policy: Policy, text: str) -> None:
    assert str(policy) == text


def test_a_policy_overrides_what_it_was_told_to_and_never_a_child() -> None:
    alias, scored, child = (Hold(kind, "x") for kind in (HoldKind.ALIAS, HoldKind.SCORE_RUN, HoldKind.CHILD))
    assert [Policy().overrides(each) for each in (alias, scored, child)] == [False, False, False]
    assert [Policy(keep_aliased=False).overrides(each) for each in (alias, scored, child)] == [True, False, False]
    assert [Policy(keep_scored=False).overrides(each) for each in (alias, scored, child)] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "hours"), [("12h", 12), ("0h", 0), ("1d", 24), (" 2w ", 14 * 24), ("999999w", 999999 * 7 * 24)]
)
def test_an_age_is_hours_days_or_weeks(text: str, hours: int) -> None:
    assert age(text) == dt.timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "12", "h", "-1h", "1.5d", "1m", "1H", "1000000h", "٣h", "1h\x1b[2J"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="--older-than"):
        age(text)


def test_what_lies_before_all_times_is_the_first_time() -> None:
    assert ago(NOW, dt.timedelta(hours=12)) == "2026-11-01T00:00:00.000000Z"
    since_the_first = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC) - dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    for more in (dt.timedelta(0), dt.timedelta(microseconds=1), dt.timedelta(weeks=10**6)):
        assert ago(NOW, since_the_first + more) == "0001-01-01T00:00:00.000000Z"
    assert ago(NOW, since_the_first - dt.timedelta(microseconds=1)) == "0001-01-01T00:00:00.000001Z"
