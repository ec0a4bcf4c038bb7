"""Which adapters a policy lets go. What was trained from an adapter keeps it under every policy."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from registry.core.digest import Digest
from registry.core.errors import Refused
from registry.core.holds import Hold, HoldKind
from registry.core.times import text_of

_AGE = re.compile(r"([0-9]{1,6})([hdw])")
_UNITS = {"h": dt.timedelta(hours=1), "d": dt.timedelta(days=1), "w": dt.timedelta(weeks=1)}


@dataclass(frozen=True, slots=True)
class Policy:
    """What keeps an adapter; it goes if nothing does.

    Attributes:
        keep_last: it is among the last so many of a run, by iteration, then time; or an export of it is of no run.
        before: it was first exported at this time or later.
        keep_aliased: an alias names it.
        keep_scored: a score run used it.
    """

    keep_last: int | None = None
    before: str | None = None
    keep_aliased: bool = True
    keep_scored: bool = True

    def overrides(self, hold: Hold) -> bool:
        """Whether an adapter goes although this relies on it."""
        match hold.kind:
            case HoldKind.ALIAS:
                return not self.keep_aliased
            case HoldKind.SCORE_RUN:
                return not self.keep_scored
        return False

    def __str__(self) -> str:
        parts = [] if self.keep_last is None else [f"--keep-last {self.keep_last}"]
        parts += [] if self.before is None else [f"first exported before {self.before}"]
        parts += [] if self.keep_aliased else ["--no-keep-aliased"]
        parts += [] if self.keep_scored else ["--no-keep-scored"]
        return "gc: " + ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Expendable:
    """An adapter that may go, with the run and iteration of its last export."""

    digest: Digest
    run: str | None
    iteration: int | None


def age(text: str) -> dt.timedelta:
    """How long ago: hours, days or weeks, as `12h`, `30d`, `2w`.

    Raises:
        Refused: anything else.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise Refused(
            "no age", key="--older-than", found=repr(text), expected="hours, days or weeks, as 12h, 30d or 2w"
        )
    return int(match[1]) * _UNITS[match[2]]


def ago(now: str, span: dt.timedelta) -> str:
    """The time that lies so long before `now`; where there is none, the first that there is."""
    moment = dt.datetime.fromisoformat(now)
    first = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    return text_of(moment - span if span < moment - first else first)
