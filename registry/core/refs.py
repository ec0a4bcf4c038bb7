"""References: what a person types to name an adapter, parsed once into a type."""

from __future__ import annotations

import re
from dataclasses import dataclass

from registry.core.digest import ALGORITHM, HEX_LENGTH, Digest
from registry.core.errors import InvalidReference, NotFound

SHORTEST_PREFIX = 4
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first hex digits of a digest, at least four of them."""

    hex: str


Reference = Digest | Prefix


def parse(text: str) -> Reference:
    """Parse a full digest (`sha256:<hex>` or bare) or a prefix of one, in either case.

    Raises:
        InvalidReference: for an empty text, too short a prefix, or too many digits.
        NotFound: for a word that is no digest; names of other kinds are not known to this version.
    """
    word = text.strip()
    if not word:
        raise InvalidReference("an empty reference names no adapter")
    marked = word.lower().startswith(f"{ALGORITHM}:")
    digits = word.lower().removeprefix(f"{ALGORITHM}:")
    if not _HEX.fullmatch(digits):
        if marked:
            raise InvalidReference("not a sha256 digest", found=repr(word))
        raise NotFound("no adapter has this name", key=repr(word), hint="Give a digest or the start of one")
    if len(digits) < SHORTEST_PREFIX:
        raise InvalidReference("too short for a prefix", found=repr(word), expected=f"{SHORTEST_PREFIX} digits or more")
    if len(digits) > HEX_LENGTH:
        raise InvalidReference("too long for a sha256 digest", found=f"{len(digits)} digits", expected=f"{HEX_LENGTH}")
    return Digest(digits) if len(digits) == HEX_LENGTH else Prefix(digits)
