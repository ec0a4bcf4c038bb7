"""Canonical JSON out; strict JSON in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core import jsontext
from registry.core.errors import MalformedFile

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)


def test_the_canonical_forms() -> None:
    value = {"b": [1, 2.5, True, None], "a": {"é": "\n", "Z": []}}
    assert jsontext.compact(value) == '{"a":{"Z":[],"é":"\\n"},"b":[1,2.5,true,null]}'.encode()
    assert jsontext.compact_in_order(value) == '{"b":[1,2.5,true,null],"a":{"é":"\\n","Z":[]}}'.encode()
    assert jsontext.pretty({"b": [1], "a": {}}) == b'{\n  "a": {},\n  "b": [\n    1\n  ]\n}\n'
    assert jsontext.pretty({"é": "日"}) == '{\n  "é": "日"\n}\n'.encode()
    assert jsontext.pretty_in_order({"é": [1], "a": {}}) == '{\n  "é": [\n    1\n  ],\n  "a": {}\n}\n'.encode()


@given(VALUES)
def test_what_is_written_reads_back(value: Any) -> None:
    for write in (jsontext.pretty, jsontext.compact, jsontext.compact_in_order):
        assert jsontext.parse(write(value), "file") == value


@given(st.dictionaries(TEXT, SCALARS), st.randoms())
def test_the_order_in_which_keys_were_set_does_not_show(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert jsontext.pretty(dict(items)) == jsontext.pretty(value)
    assert jsontext.compact(dict(items)) == jsontext.compact(value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_json_cannot_spell_is_never_written(number: float) -> None:
    for write in (jsontext.pretty, jsontext.pretty_in_order, jsontext.compact, jsontext.compact_in_order):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write([number])


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b'{"a": 1, "a": 1}', "the key 'a' appears twice"),
        (b'[{"b": {"a": 1, "\\u0061": 2}}]', "the key 'a' appears twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 65 + b"]" * 65, "nested too deeply"),
        (b'{"a":[' * 32 + b"[]" + b"]}" * 32, "nested too deeply"),
        (b'"\xff"', "not UTF-8"),
        (json.dumps("\ud800").encode(), "not UTF-8"),
        (b'{"a": ["x", {"\\udfff": 1}]}', "not UTF-8"),
        (b"", "not valid JSON"),
        (b"{} {}", "not valid JSON"),
        (b"[1,]", "not valid JSON"),
        (b"1" * 5000, "not valid JSON"),
    ],
)
def test_anything_but_strict_json_is_refused_with_the_file_and_the_cause(data: bytes, cause: str) -> None:
    with pytest.raises(MalformedFile, match=rf"^the/file: .*{cause}"):
        jsontext.parse(data, "the/file")


def test_what_is_nested_as_deeply_as_is_read_can_be_written_and_compared() -> None:
    text = b'{"a":[' * 31 + b"[[]]" + b"]}" * 31
    value, other = jsontext.parse(text, "file"), jsontext.parse(text, "file")
    assert jsontext.parse(jsontext.pretty(value), "file") == other


def test_a_key_that_is_repeated_after_many_others_is_found_at_once() -> None:
    keys = ",".join(f'"{number}":0' for number in range(200_000))  # looking each up in a list would take minutes
    with pytest.raises(MalformedFile, match="the key '199999' appears twice"):
        jsontext.parse(f'{{{keys},"199999":0}}'.encode(), "file")


def test_a_whole_surrogate_pair_is_text() -> None:
    assert jsontext.parse(b'"\\ud83d\\ude00 \\\\ud800"', "file") == "\N{GRINNING FACE} \\ud800"


@given(st.binary())
def test_any_bytes_parse_or_are_malformed(data: bytes) -> None:
    try:
        jsontext.parse(data, "file")
    except MalformedFile as error:
        assert error.path == "file"  # noqa: PT017
