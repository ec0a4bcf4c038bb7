"""Score runs linked to the adapter they used: whom the files may name, once however often, and through every crash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from registry import Ambiguous, Digest, IntegrityError, NotFound, Refused, Registry
from registry.core import records
from registry.core.comparison import Verdict
from registry.core.errors import MalformedFile
from registry.core.records import Record
from registry.core.summary import Status
from registry.index import Database, Index
from registry.operations import mend
from registry.operations.score import score
from registry.operations.score_files import read_score_run
from registry.store import LocalStore
from tests.support.answers import answers, lose_index
from tests.support.process import CommandLine
from tests.support.scoring import CONFIG, RESULT, add_run, result_of, write_score_run
from tests.support.strace import killer, needs_strace
from tests.support.trees import contents as files_in
from tests.support.trees import flip
from tests.support.values import digest_of

MANY = 16


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Digest]]:
    """A home with four adapters: of the run `r` at iterations 1 and 2, at 2 again, and of the run `s` at 1."""
    root = tmp_path_factory.mktemp("shelf")
    registry = Registry(root / "home")
    digests = add_run(registry, root, "r", (1, 2, 2)) + add_run(registry, root, "s", (1,), seed=7)
    return root / "home", digests


def score_records(registry: Registry) -> list[Record]:
    store = LocalStore(registry.home)
    return [each for subject in store.subjects() for each in store.records(subject, records.SCORE)]


def test_a_score_run_is_linked_kept_as_a_record_and_answered(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    result = result_of(adapters[0], scores={"pass@1": 0.41, "mmlu": {"law": 1}, "note": "fine"}, run_id="eval-1")
    run = write_score_run(tmp_path / "eval", result, {"model": {"adapter_dir": registry.path("r@1")}})
    done = registry.add_score(run)
    assert LocalStore(registry.home).unsettled() == [], "before another question can have settled it"
    assert (done.new, done.left_out) == (True, ("note is text",))
    assert (done.run.adapter, done.run.name, done.run.status) == (adapters[0], "eval-1", Status.COMPLETED)
    (record,) = score_records(registry)
    data = {name: (run / name).read_bytes() for name in (RESULT, CONFIG)}
    identity = {name: {"sha256": hashlib.sha256(each).hexdigest(), "bytes": len(each)} for name, each in data.items()}
    assert (record.subject, record.digest) == (adapters[0], done.run.record)
    assert record.predicate == {
        "format": 1,
        "score_run": {"name": "eval-1", "path": str(run), "result": identity[RESULT], "config": identity[CONFIG]},
        "status": "completed",
        "stop": None,
        "scores": {"mmlu/law": 1, "pass@1": 0.41},
        "adapter_named_by": ["result", "adapter_dir"],
        "scored_at": done.run.scored_at,
        "scored_by": done.run.scored_by,
    }
    assert "@" in done.run.scored_by
    assert registry.score_runs() == registry.score_runs("r@1") == [done.run]
    assert registry.score_runs(str(adapters[1])) == []
    assert registry.show("r@1").score_runs == (done.run,)
    assert registry.show("r@1").scores == {"mmlu/law": 1, "pass@1": 0.41}


def test_adding_it_again_or_from_elsewhere_writes_nothing_and_tells_the_known_one(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    run = write_score_run(tmp_path / "eval", result_of(adapters[0]))
    first = registry.add_score(run)
    before = files_in(Path(registry.home) / "records")
    copy = write_score_run(tmp_path / "copy", (run / RESULT).read_bytes(), {"run_id": "later"})
    for again in (registry.add_score(run / RESULT), Registry(registry.home).add_score(copy, adapter="r@1")):
        assert (again.new, again.run) == (False, first.run)
    assert files_in(Path(registry.home) / "records") == before
    write_score_run(run, result_of(adapters[0], scores={"pass@1": 0.5}))
    assert registry.add_score(run).new
    assert registry.show("r@1").scores == {"pass@1": 0.5}


def test_the_same_result_of_another_adapter_is_another_score_run(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    run = write_score_run(tmp_path / "eval", result_of())
    made = [registry.add_score(run, adapter=each.hex) for each in adapters[:2]]
    assert [each.new for each in made] == [True, True]
    assert [each.run.adapter for each in made] == adapters[:2]


def test_a_run_that_stopped_is_kept_as_such_and_its_scores_never_stand(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    detail = {"at": 3, "why": ["quota", None]}
    stopped = result_of(adapters[0], scores={"pass@1": 0.9}, stop={"reason": "out of time", "detail": detail})
    done = registry.add_score(write_score_run(tmp_path / "eval", stopped))
    assert (done.run.status, done.run.reason, done.run.scores) == (Status.STOPPED, "out of time", (("pass@1", 0.9),))
    assert score_records(registry)[0].predicate["stop"] == {"reason": "out of time", "detail": detail}
    assert registry.show("r@1").scores == {}
    with pytest.raises(NotFound, match="found none"):
        registry.run_scores("r", "pass@1")
    registry.add_score(write_score_run(tmp_path / "eval", result_of(adapters[0], scores={"pass@1": 0.2})))
    assert registry.show("r@1").scores == {"pass@1": 0.2}
    assert [each.status for each in registry.score_runs("r@1")] == [Status.COMPLETED, Status.STOPPED]


def model(**said: object) -> dict[str, Any]:
    return {"model": {key: str(value) for key, value in said.items()}}


def test_sources_that_agree_are_all_named(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    registry.set_alias("fixed", adapters[0].hex)
    one = adapters[0]
    for number, (result, config, option, named) in enumerate(
        [
            (one, {}, None, ["result"]),
            (one.hex, {}, None, ["result"]),
            (one.hex.upper(), {}, None, ["result"]),
            (f" sha256:{one.hex[:9]} ", {}, None, ["result"]),
            ("r@1", {}, None, ["result"]),
            ("fixed", {}, None, ["result"]),
            (None, {"adapter": one}, None, ["config"]),
            (None, {"adapter_dir": f"/elsewhere/{one.hex}/"}, None, ["adapter_dir"]),
            (None, {}, "fixed", ["option"]),
            (None, {}, "r@1", ["option"]),
            ("r@latest", {"adapter": "fixed"}, None, ["result", "config"]),
            (
                "r@1",
                {"adapter": "r@latest", "adapter_dir": f"/x/{one.hex}"},
                one.hex[:6],
                ["result", "config", "adapter_dir", "option"],
            ),
        ]
    ):
        stated = result_of(result, scores={"number": number})
        run = write_score_run(tmp_path / str(number), stated, model(**config))
        done = registry.add_score(run, adapter=option)
        assert (done.run.adapter, done.new) == (one, True)
        record = next(each for each in score_records(registry) if each.digest == done.run.record)
        assert record.predicate["adapter_named_by"] == named


def test_sources_that_disagree_are_refused_both_shown_and_nothing_is_recorded(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    one, two, three, four = adapters
    registry.set_alias("fixed", two.hex)
    unknown = digest_of("nobody")
    for result, config, option in (
        (one, {"adapter": two}, None),
        (one, {"adapter_dir": f"/x/{two.hex}"}, None),
        (one, {}, two.hex),
        (unknown, {}, two.hex),
        (one, {"adapter": unknown}, None),
        (one, {"adapter": "fixed"}, None),
        (None, {"adapter": "fixed"}, one.hex),
        ("r@1", {}, two.hex),
        (one, {"adapter": two.hex[:8]}, None),
        (None, {"adapter": "s@1"}, one.hex),
        (one, {"adapter": "s@latest"}, None),
        (one, {"adapter": "r@2"}, None),
        (one, {"adapter": "r@9"}, None),
        (four, {"adapter": "nobody"}, None),
        (one, {"adapter_dir": f"/x/{one.hex}"}, three.hex),
    ):
        run = write_score_run(tmp_path / "eval", result_of(result), model(**config))
        with pytest.raises(Refused) as caught:
            registry.add_score(run, adapter=option)
        assert "adapter" in str(caught.value.key), "the place that disagrees"
        told = (caught.value.found, caught.value.expected)
        assert all(told), "and both sides"
        assert str(Digest.parse(option) if option else result if isinstance(result, Digest) else one) in " ".join(told)
    assert score_records(registry) == []
    assert LocalStore(registry.home).unsettled() == []


def test_an_alias_that_has_moved_tells_nothing_but_may_confirm(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    one, two, three, _ = adapters
    registry.set_alias("best", one.hex)
    registry.set_alias("best", two.hex)
    run = write_score_run(tmp_path / "eval", result_of("best"))
    with pytest.raises(Refused, match=r"may have moved since.*2 adapters.*--adapter"):
        registry.add_score(run)
    with pytest.raises(Refused, match="not known ever to have named"):
        registry.add_score(run, adapter=three.hex)
    registry.remove_alias("best")
    with pytest.raises(Refused, match="may have moved since"):
        registry.add_score(run)
    for each in (one, two):
        assert registry.add_score(run, adapter=each.hex).run.adapter == each
    assert len(score_records(registry)) == 2


def test_an_alias_is_not_one_that_differs_in_case(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    registry.set_alias("Best", adapters[0].hex)
    with pytest.raises(NotFound, match=r"model\.adapter: no alias has this name; found best"):
        registry.add_score(write_score_run(tmp_path / "eval", result_of("best")))


def test_latest_of_a_run_never_tells_the_adapter(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    run = write_score_run(tmp_path / "eval", result_of("s@latest"), model(adapter="s@latest"))
    with pytest.raises(Refused, match="may have moved since"):
        registry.add_score(run)
    assert registry.add_score(run, adapter="s@latest").run.adapter == adapters[3], "a person says so now"


def test_an_iteration_of_several_adapters_is_ambiguous_until_another_source_tells_which(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    run = write_score_run(tmp_path / "eval", result_of("r@2"))
    with pytest.raises(Ambiguous) as caught:
        registry.add_score(run)
    assert set(caught.value.candidates) == {each.short for each in adapters[1:3]}
    assert registry.add_score(run, adapter=adapters[2].hex).run.adapter == adapters[2]


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (None, Refused, "says nowhere which adapter.*--adapter"),
        (str(digest_of("nobody")), NotFound, "no such adapter in the store.*aorlta-reg add"),
        ("0000", NotFound, "starts with this.*aorlta-reg add"),
        ("nobody", NotFound, "no alias has this name"),
        ("r@9", NotFound, "run and iteration.*aorlta-reg add"),
        ("", Refused, "not a reference"),
        ("abc", Refused, "not a reference"),
        ("r@x", Refused, "not a reference"),
        ("/some/dir", Refused, "not a reference"),
        ("x" * 2000, Refused, "not a reference; found 2000 characters"),
    ],
)
def test_what_names_no_adapter_is_refused_or_not_found(
    said: str | None, error: type[Exception], message: str, registry: Registry, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        registry.add_score(write_score_run(tmp_path / "eval", result_of(said)))
    assert score_records(registry) == []


def test_a_tensor_digest_is_no_adapter(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    tensors = registry.show(adapters[0].hex).tensor_digest
    with pytest.raises(NotFound, match="no such adapter"):
        registry.add_score(write_score_run(tmp_path / "eval", result_of(tensors)))


def test_a_score_run_makes_no_registry_where_there_is_none(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "none")
    for said in (digest_of("a"), "prod", "r@1", None):
        with pytest.raises((NotFound, Refused)):
            registry.add_score(write_score_run(tmp_path / "eval", result_of(said)))
    assert registry.score_runs() == []
    with pytest.raises(NotFound, match="no adapter of this run"):
        registry.run_scores("r", "pass@1")
    assert not (tmp_path / "none").exists()


def test_a_damaged_score_record_is_named_and_does_not_stand_in_the_way(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    run, other = (
        write_score_run(tmp_path / name, result_of(adapters[0], scores={name: 0.5})) for name in ("eval", "more")
    )
    registry.add_score(run)
    (record,) = Path(registry.home).rglob("score-*.json")
    flip(record)
    notes: list[str] = []
    noting = Registry(registry.home, note=notes.append)
    assert noting.show(adapters[0].hex).scores == {"eval": 0.5}
    assert any(str(record) in note and "aorlta-reg verify" in note for note in notes)
    assert noting.add_score(other).new
    assert noting.add_score(run).new, "what no longer says anything is recorded again"
    assert noting.show(adapters[0].hex).scores == {"eval": 0.5, "more": 0.5}
    assert [finding.error.path for finding in noting.verify().findings][:1] == [str(record)]
    assert noting.reindex().damaged
    assert noting.show(adapters[0].hex).scores == {"eval": 0.5, "more": 0.5}


@pytest.mark.parametrize("kind", [records.SCORE, records.COMPARISON])
def test_a_record_that_makes_no_sense_is_named_and_does_not_stand_in_the_way(
    kind: str, registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    """Its bytes are those that its name promises, but nothing in it is what the index reads."""
    store = LocalStore(registry.home)
    odd = records.make(kind, adapters[0], {"status": []})
    store.put_record(odd)
    store.settle(odd)
    notes: list[str] = []
    noting = Registry(registry.home, note=notes.append)
    assert noting.show(adapters[0].hex).digest == adapters[0]
    assert [odd.name in note and "aorlta-reg verify" in note for note in notes] == [True], "and of nothing else"
    assert noting.add_score(write_score_run(tmp_path / "eval", result_of(adapters[0], scores={"a": 0.5}))).new
    lose_index(Path(registry.home))
    assert Registry(registry.home, note=lambda _: None).show(adapters[0].hex).scores == {"a": 0.5}
    (finding,) = noting.verify().findings
    assert odd.name in str(finding.error)


def test_an_export_record_that_makes_no_sense_is_refused_by_name(registry: Registry, adapters: list[Digest]) -> None:
    odd = records.make(records.EXPORT, adapters[0], {"adapter": {}})
    LocalStore(registry.home).put_record(odd)
    LocalStore(registry.home).settle(odd)
    with pytest.raises(MalformedFile, match=odd.name):
        registry.show(adapters[0].hex)


def test_a_damaged_adapter_is_an_integrity_error(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    run = write_score_run(tmp_path / "eval", result_of(adapters[0]))
    registry.add_score(run)
    flip(Path(registry.path(adapters[0].hex)) / "export-manifest.json")
    with pytest.raises(IntegrityError, match="manifest"):
        registry.add_score(run)


def test_the_points_of_a_run_have_the_standing_scores_and_verdicts(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    one, two, _, four = adapters
    for number, (adapter, value) in enumerate(((one, 0.1), (two, 0.2), (one, 0.3), (four, 0.9))):
        registry.add_score(write_score_run(tmp_path / str(number), result_of(adapter, scores={"acc": value})))
    facts = {
        "recipe": "fp32",
        "base_digest": "b" * 64,
        "conditions": {"torch": "2.9.0", "device": "cpu", "threads": 1},
        "compared_at": "2026-02-01T00:00:00.000000Z",
        "engines": [{"engine": "vllm", "verdict": "base-only", "served_digest": "c" * 64}],
    }
    LocalStore(registry.home).put_record(records.make(records.COMPARISON, two, facts))
    assert [(each.iteration, each.adapter, each.value, each.verdict) for each in registry.run_scores("r", "acc")] == [
        (1, one, 0.3, None),
        (2, two, 0.2, Verdict.BASE_ONLY),
    ]
    with pytest.raises(NotFound, match=r"r: other: .* has this metric; found acc"):
        registry.run_scores("r", "other")
    with pytest.raises(NotFound, match="t: no adapter of this run is known"):
        registry.run_scores("t", "acc")
    before = answers(Path(registry.home))
    assert before["run scores"].keys() == {("r", "acc"), ("s", "acc")}
    lose_index(Path(registry.home))
    registry = Registry(registry.home)
    registry.reindex()
    assert answers(Path(registry.home)) == before


def test_a_missing_index_keeps_no_score_from_being_recorded_once(
    registry: Registry, adapters: list[Digest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mend, "FEW", 1)
    lose_index(Path(registry.home))
    run = write_score_run(tmp_path / "eval", result_of(adapters[0]))
    notes: list[str] = []
    made = [Registry(registry.home, note=notes.append).add_score(run) for _ in range(2)]
    assert [each.new for each in made] == [True, False]
    assert all("aorlta-reg reindex" in note for note in notes)
    assert len(notes) == 2
    Registry(registry.home).reindex()
    assert Registry(registry.home).score_runs() == [made[0].run]
    assert LocalStore(registry.home).unsettled() == []


def test_what_a_killed_writer_had_announced_is_known_and_finished(
    registry: Registry, adapters: list[Digest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_score_run(tmp_path / "eval", result_of(adapters[0]))
    made = registry.add_score(run)
    (record,) = score_records(registry)
    (file,) = (Path(registry.home) / "records").rglob(record.name)
    file.unlink()
    lose_index(Path(registry.home))
    LocalStore(registry.home).announce(record)
    monkeypatch.setattr(mend, "FEW", 1)  # so that nobody mends before it is looked for
    assert Registry(registry.home).add_score(run) == made.__class__(made.run, new=False, left_out=())
    assert [each.digest for each in score_records(registry)] == [record.digest]


class Overtaken(Index):
    """An index whose lock another process, which adds the same, gets first."""

    def __init__(self, database: Database, other: Callable[[], object]) -> None:
        super().__init__(database)
        self._other = other

    @contextmanager
    def adding(self) -> Iterator[Callable[[Iterable[Record]], None]]:
        self._other()
        with super().adding() as add:
            yield add


def test_who_waited_for_the_lock_finds_what_was_recorded_meanwhile(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    run = write_score_run(tmp_path / "eval", result_of(adapters[0]))
    first = []
    index = Overtaken(registry._opened.database, lambda: first.append(Registry(registry.home).add_score(run)))
    files, store = read_score_run(str(run)), LocalStore(registry.home)
    done = score(store, index, adapters[0], files, ("result",), now="2999", who="late@host", derive=True)
    assert (first[0].new, done.new, done.run) == (True, False, first[0].run)
    assert [each.digest for each in score_records(registry)] == [first[0].run.record]


@pytest.mark.parametrize("index", ["there", "lost"])
def test_sixteen_processes_that_add_one_result_record_it_once(
    index: str, registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    if index == "lost":
        lose_index(Path(registry.home))
    run = write_score_run(tmp_path / "eval", result_of(adapters[0]))
    processes = [CommandLine(Path(registry.home)).start("score", "add", run, "--json") for _ in range(MANY)]
    results = [(process.communicate(), process.returncode) for process in processes]
    assert [code for _, code in results] == [0] * MANY, results
    told = [json.loads(out) for (out, _), _ in results]
    assert sorted(each["new"] for each in told) == [False] * (MANY - 1) + [True]
    (record,) = score_records(registry)
    assert {each["record"] for each in told} == {str(record.digest)}
    assert [each.record for each in registry.score_runs()] == [record.digest]
    assert LocalStore(registry.home).unsettled() == []


@needs_strace
@pytest.mark.parametrize("call", ["rename", "unlink", "fdatasync", "pwrite64"])
def test_adder_killed_at_any_step_has_recorded_it_or_not_and_the_next_finds_which(
    call: str, registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    registry.set_alias("fixed", adapters[0].hex)
    with killer(call) as run:
        number, code = 0, -9
        while code:
            number += 1
            directory = write_score_run(tmp_path / "eval", result_of("fixed", scores={"number": number}))
            code = run(number, "score", "add", directory, "--home", registry.home)
            assert code in (0, -9)
            fresh = Registry(registry.home)
            known = fresh.score_runs(limit=1000)
            assert {each.record for each in known} == {each.digest for each in score_records(fresh)}
            done = fresh.add_score(directory)
            assert done.new == (done.run.record not in {each.record for each in known})
            listed = fresh.score_runs(limit=1000)
            assert [each.scores[0][1] for each in listed] == list(range(number, 0, -1)), "each once, whoever was killed"
            assert fresh.show("fixed").scores == {"number": number}
            assert LocalStore(registry.home).unsettled() == []
    assert number > 1, f"no {call} was made"


def example(registry: Registry, run: Path, evaluate: Callable[[str], float]) -> str:
    """What the README shows."""
    directory = registry.path("r@1")  # verified; what a score run's `model.adapter_dir` needs
    digest = registry.resolve("r@1")
    result = {
        "status": "completed",
        "model": {"adapter": str(digest)},
        "scores": {"pass@1": evaluate(directory)},
    }
    (run / "run_result.json").write_text(json.dumps(result))
    scored = registry.add_score(run)
    return f"{scored.run.adapter}: {registry.show(str(digest)).scores}"


def test_the_example_of_the_readme_runs(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    said = example(registry, tmp_path / "eval", lambda path: len(list(Path(path).iterdir())) / 10)
    assert said == f"{adapters[0]}: {{'pass@1': 0.3}}"
    with pytest.raises(Refused, match="names another adapter"):
        registry.add_score(tmp_path / "eval", adapter=adapters[1].hex)
