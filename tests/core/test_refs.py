"""What a person types becomes a digest, a prefix, an alias, a run's iteration, or one of two errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from registry.core.digest import Digest
from registry.core.errors import InvalidReference, NotFound, Refused
from registry.core.refs import AliasName, Prefix, RunIteration, alias_name, parse

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


@pytest.mark.parametrize(
    ("count", "reference"), [(3, None), (4, Prefix), (63, Prefix), (64, Digest), (65, None), (80, None)]
)
def test_how_many_digits_there_are_decides_what_they_are(count: int, reference: type | None) -> None:
    if reference is None:
        with pytest.raises(InvalidReference, match=f"too {'short' if count < 4 else 'long'} for"):
            parse("a" * count)
    else:
        assert type(parse("a" * count)) is reference


@given(st.text())
@example("")
@example("sha256:")
@example("sha256:prod")
@example("prod")
@example("sha256:sha256:abcd")
@example("abcd ef01")
@example("run@")
@example("@3")
@example("run@-1")
@example("run@three")
@example("run@\u0663")
def test_any_text_is_a_reference_or_one_of_two_errors(text: str) -> None:
    try:
        reference = parse(text)
    except (InvalidReference, NotFound):
        return
    match reference:
        case AliasName(name):
            assert name == text.strip()
            assert len(name) > 128 or name.lower() == "none" or alias_name(name) == reference
        case RunIteration(run, iteration):
            before, _, after = text.strip().rpartition("@")
            assert (run, iteration) == (before, None if after == "latest" else int(after))
        case _:
            assert set(reference.hex) <= set("0123456789abcdef")
            assert reference.hex in text.lower()


def test_a_word_is_an_alias_and_a_marked_word_is_no_digest() -> None:
    assert parse("prod") == AliasName("prod")
    with pytest.raises(InvalidReference, match="not a sha256 digest"):
        parse("sha256:prod")
    with pytest.raises(NotFound, match="'no such thing'"):
        parse("no such thing")


@pytest.mark.parametrize(
    ("text", "run", "iteration"),
    [("a@3", "a", 3), ("a@b@007", "a@b", 7), ("ab12@latest", "ab12", None), ("sha256:x@0", "sha256:x", 0)],
)
def test_what_follows_the_last_at_sign_is_the_iteration(text: str, run: str, iteration: int | None) -> None:
    assert parse(text) == RunIteration(run, iteration)


@pytest.mark.parametrize("text", ["run@", "@3", "run@-1", "run@three", "run@3.0", "run@\u0663", "@", f"run@{10**18}"])
def test_an_iteration_that_is_none_is_no_reference(text: str) -> None:
    with pytest.raises(InvalidReference, match="RUN@ITER"):
        parse(text)


@pytest.mark.parametrize("name", ["prod", "v1.2", "x", "_", "best-2", "A_b.c-D", "face-off", "g" * 128])
def test_such_names_can_be_aliases_and_are_read_back_as_such(name: str) -> None:
    assert alias_name(name) == parse(name) == AliasName(name)


@pytest.mark.parametrize(
    "name",
    [
        *("abc", "dead", "BEEF", "7", "a" * 64, "a" * 65),  # the start of a digest, or what looks like one
        *("", " ", "-x", ".x", "a b", "a/b", "a@b", "a@3", "sha256:x", "ü", "x\n", "a,b", "x" * 129),
        *("none", "None"),
    ],
)
def test_such_names_cannot(name: str) -> None:
    with pytest.raises(Refused, match="cannot be an alias"):
        alias_name(name)


@pytest.mark.parametrize("text", ["\udcff@3", "a\udcffb@latest"])
def test_name_that_is_not_utf8_is_no_runs(text: str) -> None:
    with pytest.raises(InvalidReference, match="RUN@ITER"):
        parse(text)


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_an_empty_reference_is_none_and_not_one_that_is_missing(text: str) -> None:
    with pytest.raises(InvalidReference, match="empty"):
        parse(text)
