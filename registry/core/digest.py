"""The Digest type: a sha256, parsed once at the edge and never passed around as a bare string."""

from __future__ import annotations

import re
from dataclasses import dataclass

from registry.core.errors import InvalidReference

ALGORITHM = "sha256"
HEX_LENGTH = 64
Bytes = bytes | bytearray | memoryview
"""What can be hashed and written."""
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A sha256 digest. `str()` gives `sha256:<hex>`, the form that records, configs and the command line use."""

    hex: str

    def __post_init__(self) -> None:
        if not _HEX.fullmatch(self.hex):
            raise InvalidReference("not a sha256 digest", found=repr(self.hex), expected="64 lower-case hex digits")

    def __str__(self) -> str:
        return f"{ALGORITHM}:{self.hex}"

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read `sha256:<hex>` or bare hex, in either case.

        Raises:
            InvalidReference: for anything else.
        """
        return cls(text.strip().lower().removeprefix(f"{ALGORITHM}:"))

    @property
    def short(self) -> str:
        """The first 12 hex digits, for tables that people read."""
        return self.hex[:12]
