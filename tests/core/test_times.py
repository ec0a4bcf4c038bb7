"""Times: one form, which sorts as text, and clocks that go ahead."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.times import is_time, later, text_of

MOMENTS = st.datetimes(max_value=dt.datetime.fromisoformat("9999-12-31"), timezones=st.just(dt.UTC))


@given(one=MOMENTS, other=MOMENTS)
def test_text_sorts_as_time_does(one: dt.datetime, other: dt.datetime) -> None:
    assert is_time(text_of(one))
    assert (text_of(one) < text_of(other)) == (one < other)


@given(now=MOMENTS, others=st.lists(MOMENTS))
def test_later_is_after_all_others_and_never_before_now(now: dt.datetime, others: list[dt.datetime]) -> None:
    found = later(text_of(now), [None, "9999", *map(text_of, others)])
    assert is_time(found)
    assert found >= text_of(now)
    assert all(found > text_of(other) for other in others)
    assert found == text_of(now) or dt.datetime.fromisoformat(found) - max(others) == dt.timedelta(microseconds=1)


@pytest.mark.parametrize(
    "value",
    [
        None,
        2026,
        "",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-13-01T00:00:00.000000Z",
        "2026-01-01T00:00:00.000000+00:00",
        "2026-01-01T00:00:00.000000Z\n",
        "٢٠٢٦-01-01T00:00:00.000000Z",
        "9999-12-31T23:59:59.999999Z",
    ],
)
def test_what_has_another_form_or_nothing_after_it_is_no_time(value: object) -> None:
    assert not is_time(value)
    assert later("2026-01-01T00:00:00.000000Z", [value]) == "2026-01-01T00:00:00.000000Z"
