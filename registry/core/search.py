"""What a search asks for, and in which order, as values; and how the words for it are read. Every word is one that an
option of the command line takes: there is no language beyond these."""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from registry.core import jsontext
from registry.core.comparison import Verdict
from registry.core.digest import Digest
from registry.core.errors import Refused
from registry.core.model import number

NOT_COMPARED = "none"
"""What `--verdict` takes for adapters that were never compared with what was served."""
OPERATORS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "=": operator.eq}
)
_SCORE = re.compile(r"(.+)(>=|<=|(?<![<>])=|>|<)([^<>=]+)", re.DOTALL)
_ITERATIONS = re.compile(r"(?P<only>[0-9]{1,18})|(?P<first>[0-9]{1,18})?\.\.(?P<last>[0-9]{1,18})?")
_BY_SCORE = "score:"


@dataclass(frozen=True, slots=True)
class ScoreBound:
    """A bound on the score of a metric: `operator` is one of OPERATORS."""

    metric: str
    operator: str
    value: float

    def holds(self, score: float) -> bool:
        """Whether a score keeps to it."""
        return OPERATORS[self.operator](score, self.value)

    def __str__(self) -> str:
        return f"{self.metric}{self.operator}{self.value:g}"


@dataclass(frozen=True, slots=True)
class Criteria:
    """What adapters must be like; None asks for nothing.

    Attributes:
        run, iterations, checkpoint, base: of one and the same export. Iterations are the first and the last; either
            may be None.
        tensors: the tensor digest.
        r, alpha: as in its settings.
        verdict: what `list` shows of it; NOT_COMPARED for none.
        alias: the name of an alias that names it now.
        scores: bounds on its scores, those of score runs that completed.
        since, until: when it was first exported, as in records; the first counts and the second does not.
    """

    run: str | None = None
    iterations: tuple[int | None, int | None] | None = None
    checkpoint: Digest | None = None
    base: str | None = None
    tensors: Digest | None = None
    r: int | None = None
    alpha: float | None = None
    verdict: str | None = None
    alias: str | None = None
    scores: tuple[ScoreBound, ...] = ()
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """In which order adapters are listed. Those that are equal in it are in that of their digests.

    Attributes:
        by: `newest`, `oldest`, `iteration` (the highest first) or `score`. The last two list only adapters that have
            one; an adapter with several exports stands where the first of them in this order puts it.
        metric: whose scores; the highest first.
        reversed: all of it from the end.
    """

    by: str = "newest"
    metric: str | None = None
    reversed: bool = False

    @property
    def descending(self) -> bool:
        """Whether the largest value (of time, iteration or score, then of digest) comes first."""
        return (self.by != "oldest") != self.reversed


NEWEST = Order()
_ORDERS = ("newest", "oldest", "iteration")


def order(text: str, *, reverse: bool = False) -> Order:
    """`newest`, `oldest`, `iteration`, or `score:NAME`.

    Raises:
        Refused: it is none of them.
    """
    metric = text.removeprefix(_BY_SCORE)
    if metric and metric != text:
        return Order("score", name(metric), reverse)
    if text not in _ORDERS:
        raise Refused("no such order", key="--sort", found=repr(text), expected="newest, oldest, iteration, score:NAME")
    return Order(text, reversed=reverse)


def iterations(text: str) -> tuple[int | None, int | None]:
    """`N`, `A..B` with both of them, `A..` or `..B`.

    Raises:
        Refused: it is none of them, or A is greater than B.
    """
    match = _ITERATIONS.fullmatch(text.strip())
    said = match.groups() if match else (None, None, None)
    only, first, last = (None if end is None else int(end) for end in said)
    if only is None and first is None and last is None:
        raise Refused("no iterations", key="--iter", found=repr(text), expected="N, A..B, A.. or ..B")
    return iteration_range((first, last) if only is None else only)


def iteration_range(asked: int | tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """One iteration, or the first and the last of some, as the two ends of a range.

    Raises:
        Refused: no iteration lies between them, or no 64-bit integer holds one.
    """
    first, last = (asked, asked) if isinstance(asked, int) else asked
    if any(end is not None and number(end) is None for end in (first, last)):
        raise Refused("no iteration", key="--iter", found=f"{first}..{last}"[:80])
    if first is not None and last is not None and first > last:
        raise Refused("no iteration lies between these", key="--iter", found=f"{first}..{last}")
    return first, last


def name(text: str) -> str:
    """A name as records can hold it: where an argument is no UTF-8 it is escaped, and then known to nobody."""
    return jsontext.sayable(text)


def score_bound(text: str) -> ScoreBound:
    """A metric's name, one of `>`, `>=`, `<`, `<=`, `=`, and a number.

    The last operator counts, since a name may hold any character.

    Raises:
        Refused: it is none.
    """
    match = _SCORE.fullmatch(text)
    value = _finite(match[3]) if match else None
    if match is None or value is None or not match[1].strip():
        expected = "a metric, one of > >= < <= =, and a number, as in 'pass@1>0.4'"
        raise Refused("no bound on a score", key="--score", found=repr(text), expected=expected)
    return ScoreBound(name(match[1].strip()), match[2], value)


def verdict(text: str) -> str:
    """A verdict, or NOT_COMPARED.

    Raises:
        Refused: there is no such verdict.
    """
    known = (*(each.value for each in Verdict), NOT_COMPARED)
    if text not in known:
        raise Refused("no such verdict", key="--verdict", found=repr(text), expected=", ".join(known))
    return text


def since(text: str) -> str:
    """An ISO 8601 date, of which all counts, or a date and time; UTC where it has no zone. As records write it.

    Raises:
        Refused: it is neither.
    """
    return _as_recorded(_moment(text, "--since"))


def until(text: str) -> str:
    """The same for an end, which does not count itself; a bare date counts to its last moment."""
    moment = _moment(text, "--until")
    try:
        dt.date.fromisoformat(text.strip())
    except ValueError:  # not a bare one
        return _as_recorded(moment)
    try:
        return _as_recorded(moment + dt.timedelta(days=1))
    except OverflowError:  # there is no later day
        return _as_recorded(dt.datetime.max.replace(tzinfo=dt.UTC))


def rank(value: int) -> int:
    """An r.

    Raises:
        Refused: no 64-bit integer holds it.
    """
    if number(value) is None:
        raise Refused("no r", key="--r", found=str(value)[:20])
    return value


def alpha(value: float) -> float:
    """An alpha.

    Raises:
        Refused: it is infinite or no number.
    """
    if number(value) is None:
        raise Refused("no alpha", key="--alpha", found=str(value)[:20])
    return float(value)


def bounds_by_metric(bounds: Sequence[ScoreBound]) -> dict[str, list[ScoreBound]]:
    """Bounds by the metric that they are on: together they are one range."""
    found: dict[str, list[ScoreBound]] = {}
    for bound in bounds:
        found.setdefault(bound.metric, []).append(bound)
    return found


def _moment(text: str, option: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        expected = "a date as 2026-11-01, or a date and time as 2026-11-01T12:00:00Z"
        raise Refused("no date", key=option, found=repr(text[:40]), expected=expected) from error


def _as_recorded(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
