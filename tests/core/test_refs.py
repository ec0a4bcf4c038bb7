"""What a person types becomes a digest, a prefix, or one of two errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.core.digest import Digest
from registry.core.errors import InvalidReference, NotFound
from registry.core.refs import Prefix, parse

HEX = st.text("0123456789abcdef", min_size=1, max_size=80)
DECORATIONS = st.sampled_from(
    [str, str.upper, lambda word: f"sha256:{word}", lambda word: f"SHA256:{word.upper()}", lambda word: f"  {word}\n"]
)


@given(HEX, DECORATIONS)
def test_hex_digits_are_a_prefix_from_four_on_and_a_digest_at_sixty_four(digits: str, decorated: Any) -> None:
    text = decorated(digits)
    if 4 <= len(digits) < 64:
        assert parse(text) == Prefix(digits)
    elif len(digits) == 64:
        assert parse(text) == Digest(digits)
    else:
        with pytest.raises(InvalidReference):
            parse(text)


@given(st.text())
@example("")
@example("sha256:")
@example("sha256:prod")
@example("prod")
@example("sha256:sha256:abcd")
@example("abcd ef01")
def test_any_other_text_is_one_of_two_errors(text: str) -> None:
    try:
        reference = parse(text)
    except (InvalidReference, NotFound):
        return
    assert set(reference.hex) <= set("0123456789abcdef")
    assert reference.hex in text.lower()


def test_a_word_is_a_name_that_nothing_has_and_a_marked_word_is_no_digest() -> None:
    with pytest.raises(NotFound, match="'prod'"):
        parse("prod")
    with pytest.raises(InvalidReference, match="not a sha256 digest"):
        parse("sha256:prod")
