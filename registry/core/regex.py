"""Regular expressions out of files, matched in bounded time: all places that a pattern can reach are followed at once,
so that nothing is tried twice. Python's own matcher tries again and again: a pattern of 60 characters can take years.

What is understood is what names of modules are selected with: characters, classes, groups, alternatives, repetition and
anchors. Whether a text matches does not depend on how greedy a repetition is.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

MAX_LENGTH = 4096
"""Of a pattern, in characters."""

_MAX_DEPTH = 20
_STEPS, _SPARE = 64, 16  # steps for each character of the text, as if there were some more
_UNLIMITED = 100
"""How often something without a limit is taken to repeat, where ways to match are counted."""
_MOST, _MOST_LOG = 1e150, 340.0  # of ways that are counted: two such numbers can be multiplied

_TOKEN = re.compile(
    r"""
    (?P<open> \( (?: \?: | \?P<\w+> )? ) (?! \? )
  | (?P<close> \) )
  | (?P<bar> \| )
  | (?P<repeat> [*+?] | \{ (?: \d+ (?: ,\d* )? | ,\d* ) \} ) \?? (?! \+ )
  | (?P<atom>
        \\ (?: x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | U[0-9a-fA-F]{8} | [^0-9NxuU] )
      | \[ \^? \]? (?: \\. | [^\]\\] )* \]
      | [A-Za-z0-9_]+ (?! [*+?{] )
      | [^\\\[()|*+?]
    )
    """,
    re.VERBOSE | re.DOTALL,
)


class TooManySteps(Exception):
    """Whether the pattern matches this text takes too long to find out."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    ways: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = re.Pattern[str] | _Sequence | _Choice | _Repeat


@dataclass(frozen=True, slots=True)
class Regex:
    """A compiled pattern."""

    root: _Node

    def ends(self, text: str, starts: set[int]) -> set[int]:
        """Where in `text` a match can end that begins at one of `starts`.

        Raises:
            TooManySteps: after a number of steps that grows with the text's length only.
        """
        return _reached(self.root, text, starts, _Budget(_STEPS * (len(text) + _SPARE)))

    @property
    def ways(self) -> float:
        """An upper bound, for texts of up to 100 characters, of how many ways to match Python would try one by one."""
        return _ways(self.root)


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Regex:
    """Compile a pattern.

    Raises:
        ValueError: it is no regular expression, or one of the kinds that are not understood here (look-around,
            references to groups, flags, possessive repetition), or very long or very deep.
    """
    if len(pattern) > MAX_LENGTH:
        raise ValueError("the pattern is too long")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a set within a set, say: other versions of Python read it otherwise
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError, Warning) as error:
            raise ValueError("not a regular expression") from error
    tokens = _tokens(pattern)
    return Regex(_choice(tokens, 0)[0])


def _tokens(pattern: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise ValueError("a kind of pattern that is not understood")
        yield token
        at = token.end()


def _choice(tokens: Iterator[re.Match[str]], depth: int) -> tuple[_Node, bool]:
    """What stands up to the end, or to the bracket that closes; and whether there was one."""
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    ways: list[list[_Node]] = [[]]
    closed = False
    for token in tokens:
        match token.lastgroup:
            case "open":
                ways[-1].append(_choice(tokens, depth + 1)[0])
            case "bar":
                ways.append([])
            case "repeat":
                ways[-1].append(_repeated(ways[-1].pop(), token["repeat"]))
            case "atom":
                ways[-1].append(re.compile(token["atom"]))
            case _:
                closed = True
                break
    sequences = tuple(way[0] if len(way) == 1 else _Sequence(tuple(way)) for way in ways)
    return (sequences[0] if len(sequences) == 1 else _Choice(sequences)), closed


def _repeated(part: _Node, text: str) -> _Repeat:
    if text in "*+?":
        return _Repeat(part, int(text == "+"), 1 if text == "?" else None)
    least, comma, most = text[1:-1].partition(",")
    return _Repeat(part, int(least or 0), (int(most) if most else None) if comma else int(least))


class _Budget:
    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManySteps


def _reached(node: _Node, text: str, starts: set[int], budget: _Budget) -> set[int]:
    """Where a match of `node` can end that begins at one of `starts`."""
    budget.spend(1 + len(starts))
    match node:
        case _Sequence(parts):
            for part in parts:
                starts = _reached(part, text, starts, budget)
                if not starts:
                    break
            return starts
        case _Choice(ways):
            return set().union(*(_reached(way, text, starts, budget) for way in ways))
        case _Repeat():
            return _reached_again(node, text, starts, budget)
        case _:
            return {found.end() for start in starts if (found := node.match(text, start))}


def _reached_again(node: _Repeat, text: str, starts: set[int], budget: _Budget) -> set[int]:
    for _ in range(node.least):
        starts = _reached(node.part, text, starts, budget)
        if not starts:
            return starts
    reached, new, count = set(starts), starts, node.least
    while new and (node.most is None or count < node.most):
        new = _reached(node.part, text, new, budget) - reached  # who was there sooner can go on further
        reached |= new
        count += 1
    return reached


def _ways(node: _Node) -> float:
    match node:
        case _Sequence(parts):
            total = 1.0
            for part in parts:
                total = min(total * _ways(part), _MOST)
            return total
        case _Choice(ways):
            return min(sum(map(_ways, ways)), _MOST)
        case _Repeat(part, least, most):
            inner = _ways(part)
            highest = least + _UNLIMITED if most is None else most
            if inner == 1 and (isinstance(part, re.Pattern) or (most or least) <= _UNLIMITED):
                return highest - least + 1.0
            if inner == 1 or highest * math.log(inner) > _MOST_LOG:
                return _MOST
            return sum(inner**count for count in range(least, highest + 1))
        case _:
            return 1.0
