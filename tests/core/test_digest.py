"""A digest is parsed once, at the edge, and is a type from there on."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from registry.core.digest import Digest
from registry.core.errors import InvalidReference

HEX = hashlib.sha256(b"adapter").hexdigest()


@pytest.mark.parametrize("text", [HEX, f"sha256:{HEX}", HEX.upper(), f"SHA256:{HEX.upper()}", f" {HEX}\n"])
def test_every_spelling_means_the_same_digest(text: str) -> None:
    digest = Digest.parse(text)
    assert digest == Digest(HEX)
    assert (str(digest), digest.hex, digest.short) == (f"sha256:{HEX}", HEX, HEX[:12])


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEX[1:],
        HEX + "0",
        HEX[:-1] + "g",
        f"sha512:{HEX}",
        f"sha256:sha256:{HEX}",
        f"{HEX[:32]} {HEX[32:]}",
        "٣" * 64,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidReference):
        Digest.parse(text)


@pytest.mark.parametrize("hexadecimal", [HEX.upper(), f"{HEX}\n", f"sha256:{HEX}"])
def test_a_digest_holds_nothing_but_lower_case_hex(hexadecimal: str) -> None:
    with pytest.raises(InvalidReference):
        Digest(hexadecimal)


def test_a_digest_cannot_be_altered() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Digest(HEX).hex = HEX[::-1]  # type: ignore[misc]
