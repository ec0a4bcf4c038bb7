"""Reading a score run's two files: what counts as a score, when a run has ended, and files that are none."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry import NotFound, Refused, RegistryError
from registry.core import records
from registry.core.errors import MalformedFile
from registry.core.summary import Status
from registry.operations.score import _predicate
from registry.operations.score_files import ScoreFiles, read_score_run
from registry.store.local import MAX_RECORD
from tests.support.scoring import CONFIG, RESULT, result_of, write_score_run
from tests.support.values import digest_of

A = digest_of("a")


def read(root: Path, result: Any, config: Any = None) -> ScoreFiles:
    return read_score_run(str(write_score_run(root / "eval", result, config)))


def test_a_score_run_is_read_with_the_digests_of_the_very_bytes(tmp_path: Path) -> None:
    stop = {"reason": "all done", "iteration": 9}
    run = read(tmp_path, result_of(A, stop=stop), {"run_id": "eval-1", "model": {"adapter": "prod"}})
    directory = tmp_path / "eval"
    for file, name in ((run.result, RESULT), (run.config, CONFIG)):
        data = (directory / name).read_bytes()
        assert file is not None
        assert (file.path, file.size) == (str(directory / name), len(data))
        assert file.digest.hex == hashlib.sha256(data).hexdigest()
    assert (run.directory, run.name, run.status) == (str(directory), "eval-1", Status.COMPLETED)
    assert run.stop == {"reason": "all done", "detail": None}
    assert (run.scores, run.left_out) == ({"pass@1": 0.41}, ())
    assert [(each.by, each.text) for each in run.named] == [("result", str(A)), ("config", "prod")]


def test_the_result_names_the_run_before_the_config_does(tmp_path: Path) -> None:
    assert read(tmp_path, result_of(run_id="mine"), {"run_id": "other"}).name == "mine"
    assert read(tmp_path, result_of(run_id=7), {"run_id": " "}).name is None


def test_the_result_file_itself_stands_for_its_directory(tmp_path: Path) -> None:
    run = read(tmp_path, result_of(), {"run_id": "eval-1"})
    assert read_score_run(str(tmp_path / "eval" / RESULT)) == run
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / RESULT).symlink_to(tmp_path / "eval" / RESULT)
    assert read_score_run(str(tmp_path / "link")).result.digest == run.result.digest


@pytest.mark.parametrize("status", ["running", "failed", "COMPLETED", "", None, True, ["completed"], {}, 1])
def test_a_run_that_has_not_ended_or_does_not_say_so_is_refused_with_what_it_says(status: Any, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"run_result\.json: status: .*completed or stopped") as caught:
        read(tmp_path, result_of(status=status))
    assert str(status)[:5] in str(caught.value)


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (None, Status.COMPLETED),
        ({}, Status.COMPLETED),
        ({"reason": "no more tasks", "detail": {}}, Status.COMPLETED),
        ({"reason": "oom", "detail": {"gpu": 3}}, Status.STOPPED),
        ({"detail": "killed"}, Status.STOPPED),
        ({"detail": [1]}, Status.STOPPED),
    ],
)
def test_a_detail_of_why_it_stopped_makes_a_run_that_says_completed_a_stopped_one(
    stop: Any, status: Status, tmp_path: Path
) -> None:
    run = read(tmp_path, result_of(stop=stop))
    assert run.status is status
    assert run.stop == ({"reason": stop.get("reason"), "detail": stop.get("detail")} if stop else None)
    assert read(tmp_path, result_of(status="stopped", stop=stop)).status is Status.STOPPED


def test_numbers_are_scores_whatever_they_are_nested_in_and_the_rest_is_named(tmp_path: Path) -> None:
    scores = """{"acc": 1, "loss": -0.5, "zero": 0.0, "mmlu": {"law": 0.25, "deep/er": {"x": 2e3}, "none": {}},
        "text": "0.5", "flag": true, "null": null, "list": [1, 2], "inf": 1e999, "long": 9223372036854775808}"""
    run = read(tmp_path, f'{{"status": "completed", "scores": {scores}}}')
    expected = {"acc": 1, "loss": -0.5, "zero": 0, "mmlu/law": 0.25, "mmlu/deep/er/x": 2000}
    assert run.scores == expected
    assert run.left_out == (
        "text is text",
        "flag is a truth value",
        "null is null",
        "list is a list",
        "inf is no number that can be kept",
        "long is no number that can be kept",
    )


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (None, "states no scores"),
        ([1], "states no scores"),
        ("0.5", "states no scores"),
        ({}, "without any number"),
        ({"a": "0.5"}, "without any number.*a is text"),
        ({"a/b": 1, "a": {"b": 2}}, r"scores\.a/b: two scores have this name"),
        ({"a/b": "x", "a": {"b": 2}}, r"scores\.a/b: two scores have this name"),
        ({"": 1}, "without a name"),
        ({"a": {" ": 1}}, "without a name"),
        ({"a": {"": {}}, "b": 1}, "without a name"),
        ({"x" * 257: 1}, "too long"),
        ({"x" * 200: {"y" * 56: 1}}, "too long"),
        ({str(number): number for number in range(4097)}, "too many scores.*4097"),
    ],
)
def test_scores_that_are_none_are_refused(scores: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=problem):
        read(tmp_path, result_of(scores=scores))


def test_a_stopped_run_may_have_no_score_yet(tmp_path: Path) -> None:
    assert read(tmp_path, result_of(status="stopped", scores={})).scores == {}


@pytest.mark.parametrize(
    ("stop", "problem"),
    [
        ('"oom"', "stop: not a JSON object"),
        ('{"reason": 5}', r"stop\.reason: not text; found 5"),
        ('{"detail": [1e999]}', r"stop\.detail: holds a number that JSON does not"),
        ('{"detail": ' + "[" * 40 + "]" * 40 + "}", r"stop\.detail: nested too deeply"),
        ('{"detail": "' + "x" * 100_001 + '"}', "stop: too long to be kept"),
        ('{"reason": "' + "x" * 100_001 + '"}', "stop: too long to be kept"),
    ],
)
def test_why_it_stopped_is_kept_as_it_is_or_refused(stop: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=problem):
        read(tmp_path, f'{{"status": "stopped", "scores": {{}}, "stop": {stop}}}')


def test_scores_nested_without_end_are_refused(tmp_path: Path) -> None:
    scores = '{"a":' * 40 + "1" + "}" * 40
    with pytest.raises(Refused, match="nested too deeply"):
        read(tmp_path, f'{{"status": "completed", "scores": {scores}}}')


def test_the_longest_that_is_read_fits_into_a_record_that_can_be_read_back(tmp_path: Path) -> None:
    wide: Any = [0] * 49_000
    for _ in range(29):
        wide = [wide]
    scores = {f"{number:06}{chr(1) * 250}": 0.1234567890123456 for number in range(4096)}
    run = read(tmp_path, json.dumps(result_of(scores=scores, stop={"detail": wide}), separators=(",", ":")))
    record = records.make(records.SCORE, A, _predicate(run, ("result",), "now", "me"))
    assert 8 << 20 < len(record.data) < MAX_RECORD, "or the limits are far from what can be kept"


@pytest.mark.parametrize("name", [RESULT, CONFIG])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"status": NaN}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b"\x00" * 9,
    ],
)
def test_a_file_that_is_no_json_object_is_refused_by_its_path(name: str, data: bytes, tmp_path: Path) -> None:
    directory = write_score_run(tmp_path / "eval", result_of(), {})
    (directory / name).write_bytes(data)
    with pytest.raises(MalformedFile) as caught:
        read_score_run(str(directory))
    assert caught.value.path == str(directory / name)


@pytest.mark.parametrize("name", [RESULT, CONFIG])
@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/dev/tty")]
)
def test_what_is_no_regular_file_is_refused_without_waiting(
    name: str, make: Callable[[Path], object], tmp_path: Path
) -> None:
    directory = write_score_run(tmp_path / "eval", result_of(), {})
    (directory / name).unlink()
    make(directory / name)
    with pytest.raises(RegistryError) as caught:
        read_score_run(str(directory))
    assert caught.value.path == str(directory / name)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    directory = write_score_run(tmp_path / "eval", result_of())
    with (directory / RESULT).open("ab") as file:
        file.truncate(17 << 20)
    with pytest.raises(Refused, match="larger than"):
        read_score_run(str(directory))


def test_what_is_no_score_run_is_refused_or_not_found_by_its_path(tmp_path: Path) -> None:
    directory = write_score_run(tmp_path / "eval", result_of(), {})
    os.mkfifo(tmp_path / "fifo")
    for path in (directory / CONFIG, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(Refused, match="neither the directory of a score run") as caught:
            read_score_run(str(path))
        assert caught.value.path == str(path)
    for path in (tmp_path / "missing", tmp_path / "missing" / RESULT, tmp_path):
        with pytest.raises(NotFound, match=r"run_result\.json"):
            read_score_run(str(path))
    shutil.rmtree(directory)
    directory.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Refused):
        read_score_run(str(directory))


def test_a_current_directory_that_is_gone_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(NotFound):
        read_score_run(".")


@pytest.mark.parametrize("adapter", [5, ["x"], {}, True])
def test_an_adapter_that_is_no_text_is_refused(adapter: Any, tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match=r"config\.json: model\.adapter: not a reference"):
        read(tmp_path, result_of(), {"model": {"adapter": adapter}})


def test_only_a_directory_called_by_a_full_digest_names_an_adapter(tmp_path: Path) -> None:
    for where, named in (
        (f"/store/adapters/ab/{A.hex}", 1),
        (f"/store/adapters/ab/{A.hex}//", 1),
        (f"/store/{A.hex}/checkpoint", 0),
        (f"/store/{A.hex[:-1]}", 0),
        ("/store/my-adapter", 0),
        ("", 0),
        (7, 0),
    ):
        run = read(tmp_path, result_of(), {"model": {"adapter_dir": where}})
        assert [(each.by, each.key, each.text) for each in run.named] == [
            ("adapter_dir", "model.adapter_dir", str(A))
        ] * named
    assert read(tmp_path, result_of(model="org/base"), {"model": ["x"]}).named == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    facts=st.fixed_dictionaries(
        {}, optional={"scores": JSON, "stop": JSON, "status": JSON, "model": JSON, "run_id": JSON}
    )
)
def test_any_json_is_read_to_what_a_record_can_hold_or_refused(facts: dict[str, Any], tmp_path: Path) -> None:
    stated = result_of() | facts
    try:
        run = read(tmp_path, json.dumps(stated), json.dumps(facts))
    except Refused:
        return
    record = records.make(records.SCORE, A, _predicate(run, (), "2026", "me"))
    assert records.parse(record.data, record.name).predicate["scores"] == run.scores
