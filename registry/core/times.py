"""Points in time as records state them: UTC, ISO 8601, in microseconds. As text they sort as they do in time."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import TypeGuard

_FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_STEP = dt.timedelta(microseconds=1)


def text_of(moment: dt.datetime) -> str:
    """A moment, which knows its time zone, as a record states it."""
    return moment.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def is_time(value: object) -> TypeGuard[str]:
    """Whether this is a time in the form above, and one that something can be later than."""
    if not isinstance(value, str) or not _FORM.fullmatch(value):
        return False
    try:
        return dt.datetime.fromisoformat(value) + _STEP is not None
    except (ValueError, OverflowError):
        return False


def later(now: str, than: Iterable[object]) -> str:
    """`now`, or, where the clocks of others go ahead, the first moment after all of `than`. Others count not."""
    newest = max(filter(is_time, than), default="")
    return now if now > newest else text_of(dt.datetime.fromisoformat(newest) + _STEP)


def is_before(at: object, now: str, span: dt.timedelta) -> bool:
    """Whether `at` is a time, and lies more than `span` before `now`."""
    return is_time(at) and dt.datetime.fromisoformat(now) - dt.datetime.fromisoformat(at) > span
