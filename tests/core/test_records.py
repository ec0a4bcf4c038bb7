"""A record proves itself: its name is the sha256 of its bytes, and its subject is in them."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core import jsontext, records
from registry.core.errors import IntegrityError, MalformedFile, RegistryError
from tests.support.values import digest_of

SUBJECT, OTHER = map(digest_of, ("adapter", "other"))
RECORD = records.make(records.EXPORT, SUBJECT, {"pass": True, "a": [1, "é"]})


def named(data: bytes, kind: str = records.EXPORT) -> str:
    return f"{kind}-{hashlib.sha256(data).hexdigest()}.json"


def test_a_record_is_an_in_toto_statement_in_canonical_json() -> None:
    assert json.loads(RECORD.data) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "adapter_model.safetensors", "digest": {"sha256": SUBJECT.hex}}],
        "predicateType": "urn:aorlta-reg:export:v1",
        "predicate": {"pass": True, "a": [1, "é"]},
    }
    assert jsontext.pretty(json.loads(RECORD.data)) == RECORD.data


def test_its_name_is_its_kind_and_the_sha256_of_its_bytes() -> None:
    assert RECORD.name == named(RECORD.data)
    assert RECORD.digest.hex == hashlib.sha256(RECORD.data).hexdigest()
    parsed = records.parse(RECORD.data, RECORD.name, SUBJECT)
    assert (parsed.kind, parsed.subject, parsed.predicate, parsed.data, parsed.digest, parsed.name) == (
        RECORD.kind,
        SUBJECT,
        RECORD.predicate,
        RECORD.data,
        RECORD.digest,
        RECORD.name,
    )


@given(st.integers(0, len(RECORD.data) - 1), st.integers(1, 255))
def test_a_changed_byte_is_an_integrity_error(place: int, flip: int) -> None:
    data = bytearray(RECORD.data)
    data[place] ^= flip
    with pytest.raises(IntegrityError, match=RECORD.digest.hex):
        records.parse(bytes(data), RECORD.name, SUBJECT)


def test_a_record_about_another_adapter_is_refused() -> None:
    with pytest.raises(MalformedFile, match=str(OTHER)):
        records.parse(RECORD.data, RECORD.name, OTHER)


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicateType": "urn:aorlta-reg:export:v2"},
        {"predicateType": "urn:aorlta-reg:score:v1"},
        {"predicate": []},
        {"subject": []},
        {"subject": [{"digest": {"sha256": SUBJECT.hex}}] * 2},
        {"subject": [{"digest": {"sha512": SUBJECT.hex}}]},
    ],
)
def test_a_well_named_file_that_is_no_such_statement_is_refused(change: dict[str, object]) -> None:
    data = jsontext.pretty(json.loads(RECORD.data) | change)
    with pytest.raises(MalformedFile, match="in-toto"):
        records.parse(data, named(data), SUBJECT)


@given(st.binary())
def test_well_named_rubbish_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedFile):
        records.parse(data, named(data), SUBJECT)


@given(st.binary(), st.text())
def test_any_bytes_under_any_name_are_a_record_or_an_error_of_ours(data: bytes, name: str) -> None:
    with pytest.raises(RegistryError):
        records.parse(data, name, SUBJECT)
