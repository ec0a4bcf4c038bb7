"""The matcher that never tries twice says what Python's own says, and is done in a number of steps known beforehand."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.core import regex
from registry.core.errors import UnsupportedLora
from registry.core.patterns import is_usable, matching, selects

atoms = st.sampled_from(["a", "b", ".", "ab", r"\.", r"\w", r"\d", "[ab]", "[^a]", r"[]a\]]", r"\x61", "^", "$", r"\b"])
quantifiers = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{1,}?"])


def _joined(parts: list[tuple[str, str]]) -> str:
    return "".join(part + ("" if part in ("^", "$", r"\b") else quantifier) for part, quantifier in parts)


sequences = st.lists(st.tuples(atoms, quantifiers), max_size=4).map(_joined)
patterns = st.recursive(
    sequences,
    lambda inner: st.tuples(inner, inner, quantifiers, sequences).map(
        lambda drawn: f"(?:{drawn[0]}|({drawn[1]})){drawn[2]}{drawn[3]}"
    ),
    max_leaves=6,
)


@settings(max_examples=1500)
@given(pattern=patterns, text=st.text(alphabet="ab.1", max_size=8))
def test_a_text_matches_where_python_says_so(pattern: str, text: str) -> None:
    assert (len(text) in regex.compiled(pattern).ends(text, {0})) == (re.fullmatch(pattern, text) is not None)


@settings(max_examples=500)
@given(key=patterns, module=st.text(alphabet="ab.1", max_size=8))
def test_a_pattern_matches_the_ends_of_names_that_peft_says_it_matches(key: str, module: str) -> None:
    expected = [1] if re.match(rf"(.*\.)?({key})$", module) else []
    assert matching(module, ((key, 1),)) == expected


@given(key=st.text(alphabet="ab.", min_size=1, max_size=4), module=st.text(alphabet="ab.", max_size=8))
def test_a_plain_name_matches_as_the_pattern_that_it_is(key: str, module: str) -> None:
    assert matching(module, ((key, 1),)) == ([1] if re.match(rf"(.*\.)?({key})$", module) else [])


@given(targets=st.lists(st.text(alphabet="ab.", max_size=4)), module=st.text(alphabet="ab.", max_size=8))
def test_a_list_of_targets_holds_whole_names_and_their_ends(targets: list[str], module: str) -> None:
    expected = any(module == target or module.endswith(f".{target}") for target in targets)
    assert selects(targets, module) is expected
    assert selects(frozenset(targets), module) is expected


ENDLESS = {  # each would take Python longer than the universe has been there
    "nested": "(a+)+b",
    "alternatives": "(?:a|a)" * 60 + "b",
    "optional": "a?" * 60 + "a" * 60 + "b",
    "groups": "(?:a?){60}" + "a{60}b",
    "stars": ".*" * 30 + "b",
    "emptied": "(?:(?:a|){9}|){9}b",
    "counted": "(?:){999999999}(?:){999999999}b",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_pattern_that_python_never_ends_is_done_or_refused(name: str) -> None:
    module = "a" * 60
    try:
        assert not selects(ENDLESS[name], module)
    except UnsupportedLora as error:
        assert "too long" in str(error)  # noqa: PT017
    assert not is_usable(ENDLESS[name]), "peft would try it"


def test_the_most_popular_long_pattern_is_matched() -> None:
    """What unsloth writes as `target_modules` where several kinds of modules are trained."""
    kinds, layers = "(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)", "(?:self_attn|attention|mlp|dense)"
    pattern = (
        rf"(?:.*?(?:language|text).*?{layers}.*?{kinds}.*?)|(?:\bmodel\.layers\.[\d]{{1,}}\.{layers}\.(?:{kinds}))"
    )
    for name, expected in {
        "model.language_model.layers.61.self_attn.q_proj": True,
        "model.layers.3.mlp.up_proj": True,
        "model.visual.blocks.3.mlp.up_proj": False,
    }.items():
        assert selects(pattern, name) is expected
        assert bool(re.fullmatch(pattern, name)) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a(?=b)",
        "(?<!a)b",
        r"(a)\1",
        "(?P<n>a)(?P=n)",
        "(?i)a",
        "a*+",
        "(?>a)",
        "[[a]",
        "a" * 5000,
        "(" * 30 + ")" * 30,
    ],
    ids=lambda pattern: pattern[:12],
)
def test_what_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"pattern|expression|deep"):
        regex.compiled(pattern)
    assert not is_usable(pattern)
    with pytest.raises(UnsupportedLora, match="cannot be used"):
        selects(pattern, "a")


@pytest.mark.parametrize(
    "key", ["q_proj", r"layers\.\d+\.q_proj", "layers.(0|1|2|3|4|5|6|7|8|9).q", ".*q.*", "(self_)?attn.q"]
)
def test_what_people_write_is_usable(key: str) -> None:
    assert is_usable(key)


@pytest.mark.parametrize("length", [10, 1000, 100_000])
def test_steps_grow_with_the_text_and_not_with_what_the_pattern_repeats(length: int) -> None:
    assert regex.compiled("(?:a|b)*c").ends("ab" * length, {0}) == set()
    assert regex.compiled("(?:a|aa|aaa)*c").ends("a" * length, {0}) == set(), "many ways to each place"
