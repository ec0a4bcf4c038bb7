"""References: what a person types to name an adapter, parsed once into a type; and which words can be an alias."""

from __future__ import annotations

import re
from dataclasses import dataclass

from registry.core.digest import ALGORITHM, HEX_LENGTH, Digest
from registry.core.errors import InvalidReference, NotFound, Refused

SHORTEST_PREFIX = 4
LATEST = "latest"
NO_ADAPTER = "none"
"""What `--expect` takes for an alias that should name nothing; so no alias can be called this."""
_LONGEST_NAME = 128
_HEX = re.compile(r"[0-9a-f]+", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ITERATION = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first hex digits of a digest, at least four of them."""

    hex: str


@dataclass(frozen=True, slots=True)
class AliasName:
    """A movable name for an adapter."""

    name: str


@dataclass(frozen=True, slots=True)
class RunIteration:
    """What a run exported at an iteration; None is the latest one it exported."""

    run: str
    iteration: int | None

    def __str__(self) -> str:
        return f"{self.run}@{LATEST if self.iteration is None else self.iteration}"


Reference = Digest | Prefix | AliasName | RunIteration


def parse(text: str) -> Reference:
    """Parse a full digest (`sha256:<hex>` or bare) or a prefix of one, in either case; `RUN@ITER`; or an alias.

    A run's name may hold anything, `@` too: what follows the last one is the iteration, or `latest`.

    Raises:
        InvalidReference: for an empty text, too short a prefix, too many digits, or an iteration that is none.
        NotFound: for a word that is no reference and cannot be an alias.
    """
    word = text.strip()
    if not word:
        raise InvalidReference("an empty reference names no adapter")
    run, at, iteration = word.rpartition("@")
    if at:
        return _run_iteration(word, run, iteration)
    marked = word.lower().startswith(f"{ALGORITHM}:")
    digits = word.lower().removeprefix(f"{ALGORITHM}:")
    if not _HEX.fullmatch(digits):
        if marked:
            raise InvalidReference("not a sha256 digest", found=repr(word))
        if not _NAME.fullmatch(word):
            raise NotFound("no adapter has this name", key=repr(word), hint="Give a digest, an alias or RUN@ITER")
        return AliasName(word)
    if len(digits) < SHORTEST_PREFIX:
        raise InvalidReference("too short for a prefix", found=repr(word), expected=f"{SHORTEST_PREFIX} digits or more")
    if len(digits) > HEX_LENGTH:
        raise InvalidReference("too long for a sha256 digest", found=f"{len(digits)} digits", expected=f"{HEX_LENGTH}")
    return Digest(digits) if len(digits) == HEX_LENGTH else Prefix(digits)


def alias_name(text: str) -> AliasName:
    """`text` as the name of an alias.

    Raises:
        Refused: it could be taken for another reference, or holds what file names and shells would not.
    """
    if not _NAME.fullmatch(text) or len(text) > _LONGEST_NAME:
        raise Refused(
            "cannot be an alias",
            key=repr(text[: _LONGEST_NAME + 1]),
            expected=f"up to {_LONGEST_NAME} letters, digits, '.', '_' or '-', and no '.' or '-' in front",
        )
    if _HEX.fullmatch(text):
        raise Refused("cannot be an alias: it could be the start of a digest", key=repr(text))
    if text.lower() == NO_ADAPTER:
        raise Refused("cannot be an alias: --expect takes it for no adapter", key=repr(text))
    return AliasName(text)


def is_name(text: str) -> bool:
    """Whether a run can have this name: text that UTF-8 can hold, which what is typed need not be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return bool(text)


def _run_iteration(word: str, run: str, iteration: str) -> RunIteration:
    if iteration == LATEST and is_name(run):
        return RunIteration(run, None)
    if not _ITERATION.fullmatch(iteration) or not is_name(run):
        raise InvalidReference("not RUN@ITER", found=repr(word), expected=f"a run, '@', and a number or '{LATEST}'")
    return RunIteration(run, int(iteration))
