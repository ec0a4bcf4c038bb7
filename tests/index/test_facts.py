"""What a record says is checked field by field: none can stop an insertion, or leave a row that says nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.core import records
from registry.core.errors import MalformedFile
from registry.core.records import Record
from registry.index import Index, facts
from tests.support.values import digest_of

Make = Callable[..., Record]
READ = {records.EXPORT: facts.export, records.COMPARISON: facts.comparison, records.ALIAS: facts.alias_move}
NOTHING = object()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def changed(record: Record, path: str, value: Any) -> Record:
    predicate = copy.deepcopy(record.predicate)
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
    place: Any = predicate
    for key in parents:
        place = place[key]
    if value is NOTHING:
        del place[last]
    else:
        place[last] = value
    return records.make(record.kind, record.subject, predicate)


@pytest.fixture
def sound(exported: Make, compared: Make, moved: Make) -> dict[str, Record]:
    return {
        records.EXPORT: exported(id="r1"),
        records.COMPARISON: compared(rounding="nearest", one="identical", two="partial"),
        records.ALIAS: moved("best", 1, after="adapter"),
    }


REQUIRED = [
    *(("export", path) for path in ("adapter", "adapter/tensor_digest", "adapter/modules", "lora/r", "exported_at")),
    *(("export", path) for path in ("adapter/adapter_model.safetensors/bytes", "lora/lora_alpha")),
    *(("export", f"checkpoint/{key}") for key in ("sha256", "bytes", "path", "reader")),
    *(("comparison", path) for path in ("recipe", "conditions", "conditions/device", "base_digest", "engines")),
    *(("comparison", f"engines/1/{key}") for key in ("engine", "verdict", "served_digest")),
    *(("alias", path) for path in ("alias", "sequence", "moved_at", "moved_by")),
]


@pytest.mark.parametrize(("kind", "path"), REQUIRED)
def test_a_field_that_must_be_there_is_missed_by_name(kind: str, path: str, sound: dict[str, Record]) -> None:
    assert READ[kind](sound[kind])
    with pytest.raises(MalformedFile) as caught:
        READ[kind](changed(sound[kind], path, NOTHING))
    assert caught.value.key is not None
    assert caught.value.key.startswith(path.replace("/", "."))


WRONG = [
    ("export", "lora/lora_alpha", 0),
    ("export", "lora/lora_alpha", True),
    ("export", "lora/r", 4.0),
    ("export", "lora/r", 1 << 63),
    ("export", "lora/use_rslora", 1),
    ("export", "run/iteration", "3"),
    ("export", "run", ["r1"]),
    ("export", "checkpoint/sha256", "A" * 64),
    ("export", "adapter/tensor_digest", "abcd"),
    ("export", "exported_at", "2026-01-01"),
    ("comparison", "engines/0/verdict", "fine"),
    ("comparison", "engines/0/survival", 0.5),
    ("comparison", "engines/0/survival", {"projected": "all", "rounded_away": 0}),
    ("comparison", "engines", {}),
    ("comparison", "engines/0", "vllm"),
    ("alias", "alias", "abcd"),
    ("alias", "alias", "a@b"),
    ("alias", "to", "x" * 64),
    ("alias", "sequence", None),
]


@pytest.mark.parametrize(("kind", "path", "value"), WRONG)
def test_a_value_of_another_kind_is_refused(kind: str, path: str, value: Any, sound: dict[str, Record]) -> None:
    with pytest.raises(MalformedFile, match=r"a field of the record"):
        READ[kind](changed(sound[kind], path, value))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        *(("export", path) for path in ("run", "run/id", "run/iteration", "base", "base/name", "base/revision")),
        *(("comparison", f"engines/0/{path}") for path in ("stated", "stated/rounding", "survival")),
        *(("alias", path) for path in ("from", "to")),
    ],
)
@pytest.mark.parametrize("value", [None, NOTHING])
def test_what_need_not_be_known_may_be_null_or_missing(
    kind: str, path: str, value: Any, sound: dict[str, Record]
) -> None:
    assert READ[kind](changed(sound[kind], path, value))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(value=JSON, place=st.sampled_from(REQUIRED))
def test_any_value_anywhere_is_taken_by_the_database_or_refused(
    value: Any, place: tuple[str, str], sound: dict[str, Record], index: Index
) -> None:
    kind, path = place
    try:
        index.add([sound[records.EXPORT], changed(sound[kind], path, value)])
    except MalformedFile:
        return
    assert index.adapter(digest_of("adapter")) is not None
