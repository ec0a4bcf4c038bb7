"""The index lost, behind or damaged: the store's records give the same answers, and no loss goes unsaid."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from registry import IntegrityError, Registry
from registry.core import records
from registry.core.errors import IndexDamaged, IndexMissing, StorageError
from registry.core.records import Record
from registry.operations import mend
from registry.store import LocalStore
from tests.support.answers import answers, lose_index
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import contents as files_in
from tests.support.trees import flip
from tests.support.values import comparison

Notes = list[str]


@pytest.fixture
def notes() -> Notes:
    return []


@pytest.fixture
def registry(home: Path, notes: Notes) -> Registry:
    return Registry(home, note=notes.append)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three of one run, of which two give one adapter; one of another run, at the same iteration of the same name."""
    root = tmp_path_factory.mktemp("runs")
    made = [
        write_checkpoint(
            root / "r1", contents(lora_state(seed=seed), iteration=number) | {"step": number}, iteration=number
        )
        for number, seed in ((1, 0), (2, 1), (3, 0))
    ]
    twin = contents(lora_state(seed=5), iteration=3)
    return [*made, write_checkpoint(root / "again" / "r1", twin, config={"run_id": "r1"})]


@pytest.fixture
def rich(registry: Registry, checkpoints: list[Path]) -> Registry:
    """A registry with something of every kind."""
    digests = [registry.add(checkpoint).digest for checkpoint in checkpoints]
    store = LocalStore(registry.home)
    for record in (comparison(digests[0], vllm="identical", sglang="partial"), comparison(digests[1], vllm="vacuous")):
        store.put_record(record)
    registry.set_alias("best", "r1@2")
    registry.set_alias("prod", digests[0].hex)
    registry.set_alias("prod", "best", expect="r1@1")
    registry.set_alias("old", digests[0].hex)
    registry.remove_alias("old")
    assert store.unsettled() == []
    return registry


def home_of(registry: Registry) -> Path:
    return Path(registry.home)


def test_every_query_answers_the_same_after_the_index_was_deleted_and_made_anew(rich: Registry) -> None:
    before = answers(home_of(rich))
    assert len(before["list"]) == 3
    assert {move.name for move in before["aliases"]} == {"best", "prod"}
    assert before["history"].keys() == {"best", "prod", "old"}
    assert "more than one" in before["runs"]["r1@3"]
    assert before["runs"].keys() == {"r1@1", "r1@2", "r1@3", "r1@latest"}
    assert sum(len(each.comparisons) for each in before["show"].values()) == 3
    lose_index(home_of(rich))
    done = Registry(rich.home).reindex()
    assert answers(home_of(rich)) == before
    assert done.records == {"export": 4, "comparison": 2, "alias": 5}
    assert {each.kind: (each.added, each.removed, each.changed) for each in done.changes} == {
        "adapters": (3, 0, 0),
        "exports": (4, 0, 0),
        "comparisons": (3, 0, 0),
        "alias moves": (5, 0, 0),
        "score runs": (0, 0, 0),
        "scores": (0, 0, 0),
        "removals": (0, 0, 0),
    }
    assert done.rate > 0
    assert (done.damaged, done.set_aside) == ((), None)


def test_reindexing_a_right_index_finds_nothing_and_writes_nothing_to_the_store(rich: Registry) -> None:
    before, files = answers(home_of(rich)), files_in(home_of(rich) / "records")
    done = rich.reindex()
    assert all((each.added, each.removed, each.changed) == (0, 0, 0) for each in done.changes)
    assert answers(home_of(rich)) == before
    assert files_in(home_of(rich) / "records") == files


def test_a_small_index_that_was_lost_is_made_anew_by_the_next_command_which_says_so(
    rich: Registry, notes: Notes
) -> None:
    before = answers(home_of(rich))
    for ask in (
        lambda lost: lost.newest(9),
        lambda lost: lost.show("r1@2"),
        lambda lost: lost.resolve("prod"),
        lambda lost: lost.aliases(),
        lambda lost: lost.set_alias("best", "r1@2"),
    ):
        lose_index(home_of(rich))
        notes.clear()
        ask(Registry(rich.home, note=notes.append))
        assert notes == ["the index was missing: made anew from 11 records"]
        assert answers(home_of(rich)) == before
    assert len(notes) == 1, "said once"


def test_a_large_index_that_was_lost_is_named_with_what_to_do_and_stays_missing_until_then(
    rich: Registry, notes: Notes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = answers(home_of(rich))
    monkeypatch.setattr(mend, "FEW", 5)
    lose_index(home_of(rich))
    lost = Registry(rich.home, note=notes.append)
    for ask in (lambda: lost.newest(9), lambda: lost.show(str(before["list"][0].digest)), lambda: lost.resolve("prod")):
        with pytest.raises(IndexMissing, match="aorlta-reg reindex"):
            ask()
    assert notes == []
    assert lost.path(str(before["list"][0].digest)), "a digest needs no index"

    added = lost.add(write_checkpoint(tmp_path / "r9", contents(lora_state(seed=9)))).digest
    assert len(notes) == 1
    assert "aorlta-reg reindex" in notes[0]
    with pytest.raises(IndexMissing):
        lost.newest(9)
    with pytest.raises(IndexMissing):
        lost.set_alias("prod", added.hex)

    assert {each.kind: each.added for each in lost.reindex().changes}["adapters"] == 4
    assert LocalStore(rich.home).unsettled() == []
    assert lost.newest(9)[0].digest == added
    assert lost.newest(9)[1:] == before["list"]
    assert lost.aliases() == before["aliases"]


def test_registry_that_is_made_by_several_is_not_taken_for_one_that_lost_its_index(
    home: Path, checkpoints: list[Path], notes: Notes
) -> None:
    """One has published and recorded, and its index comes a moment later."""
    registry = Registry(home)
    digest = registry.add(checkpoints[0]).digest
    store = LocalStore(str(home))
    (record,) = store.records(digest)
    store.announce(record)
    lose_index(home)
    Registry(home, note=notes.append).add(checkpoints[1])
    assert notes == []
    assert len(registry.newest(9)) == 2, "of the database that has the name now, and not of the one that was open"
    assert len(Registry(home).newest(9)) == 2


def announced(registry: Registry) -> list[Record]:
    return LocalStore(registry.home).unsettled()


@pytest.mark.parametrize("state", ["announced", "recorded"])
def test_what_a_killed_writer_left_is_there_for_the_next_question(state: str, rich: Registry, notes: Notes) -> None:
    store, digest = LocalStore(rich.home), rich.resolve("r1@2")
    left = comparison(digest, at=9, vllm="base-only")
    (store.announce if state == "announced" else store.put_record)(left)
    assert rich.show(digest.hex).verdict == "base-only"
    assert left.digest in {record.digest for record in store.records(digest)}
    assert announced(rich) == notes == []


def test_adapter_that_was_published_and_not_recorded_is_listed(rich: Registry, notes: Notes, tmp_path: Path) -> None:
    other = Registry(tmp_path / "other")
    digest = other.add(write_checkpoint(tmp_path / "r9", contents(lora_state(seed=9)))).digest
    (record,) = LocalStore(other.home).records(digest)
    LocalStore(rich.home).announce(record)
    assert len(rich.newest(9)) == 3, "its writer has not published it yet"
    assert len(announced(rich)) == 1
    shutil.copytree(other.path(digest.hex), home_of(rich) / "adapters" / digest.hex[:2] / digest.hex)
    assert rich.newest(1)[0].digest == digest
    assert [each.digest for each in LocalStore(rich.home).records(digest)] == [record.digest]
    assert announced(rich) == notes == []


def test_export_whose_adapter_never_came_is_taken_up_by_the_next_add_of_it_or_given_up_after_a_week(
    rich: Registry, tmp_path: Path
) -> None:
    other, checkpoint = Registry(tmp_path / "other"), write_checkpoint(tmp_path / "r9", contents(lora_state(seed=9)))
    digest = other.add(checkpoint).digest
    (record,) = LocalStore(other.home).records(digest)
    week_old = {**record.predicate, "exported_at": "2020-01-01T00:00:00.000000Z"}
    store = LocalStore(rich.home)
    store.announce(records.make(records.EXPORT, digest, week_old))
    store.announce(record)
    rich.newest(1)
    assert [each.digest for each in announced(rich)] == [record.digest]
    rich.add(checkpoint)
    assert [each.digest for each in store.records(digest)] == [record.digest]
    assert announced(rich) == []
    assert len(rich.show(digest.hex).exports) == 1


def test_export_that_is_recorded_already_is_not_recorded_again_for_having_been_announced_at_another_time(
    rich: Registry,
) -> None:
    store, digest = LocalStore(rich.home), rich.resolve("r1@2")
    before = rich.show(digest.hex)
    (record,) = (each for each in store.records(digest) if each.kind == records.EXPORT)
    again = {**record.predicate, "exported_at": "2999-01-01T00:00:00.000000Z"}
    store.announce(records.make(records.EXPORT, digest, again))
    assert rich.show(digest.hex) == before
    assert announced(rich) == []
    assert [each.digest for each in store.records(digest) if each.kind == records.EXPORT] == [record.digest]


def test_one_gap_that_cannot_be_mended_is_told_and_keeps_no_other(rich: Registry, notes: Notes) -> None:
    store = LocalStore(rich.home)
    first, second = rich.newest(9)[:2]
    store.put_record(bad := comparison(first.digest, at=8, vllm="partial"))
    store.put_record(good := comparison(second.digest, at=8, vllm="partial"))
    (broken,) = (home_of(rich) / "records" / first.digest.hex[:2] / first.digest.hex).glob("export-*.json")
    flip(broken)
    listed = {each.digest: each for each in rich.newest(9)}
    assert [each.record for each in listed[second.digest].comparisons][-1] == good.digest
    assert len(notes) == 1
    assert str(broken) in notes[0]
    assert [each.digest for each in announced(rich)] == [bad.digest]


def test_damaged_record_is_named_by_its_path_and_the_rest_is_indexed(rich: Registry) -> None:
    store = LocalStore(rich.home)
    digest = rich.resolve("r1@2")
    (export,) = (each for each in store.records(digest) if each.kind == records.EXPORT)
    alias = next(each for each in store.records(digest) if each.predicate.get("alias") == "best")
    paths = [home_of(rich) / "records" / digest.hex[:2] / digest.hex / each.name for each in (export, alias)]
    for path in paths:
        flip(path)
    before = {each.digest: each for each in rich.newest(9)}
    done = rich.reindex()
    assert {str(path) for path in paths} <= {error.path for error in done.damaged}
    assert all(isinstance(error, IntegrityError) for error in done.damaged)
    assert len(done.damaged) == 3, "and the comparison, of an adapter that no export is known of"
    assert {each.digest: each for each in rich.newest(9)} == {
        other: each for other, each in before.items() if other != digest
    }
    assert [move.name for move in rich.aliases()] == ["prod"]
    for path in paths:
        flip(path)
    assert rich.reindex().damaged == ()
    assert {each.digest: each for each in rich.newest(9)} == before


def test_export_record_that_was_lost_is_told_again_by_the_adapter(rich: Registry) -> None:
    before = answers(home_of(rich))
    digest = rich.resolve("r1@2")
    directory = home_of(rich) / "records" / digest.hex[:2] / digest.hex
    files = files_in(directory)
    for path in directory.glob("export-*.json"):
        path.unlink()
    lose_index(home_of(rich))
    assert Registry(rich.home).reindex().damaged == ()
    assert files_in(directory) == files
    assert answers(home_of(rich)) == before


def test_what_is_recorded_of_an_adapter_that_is_gone_stays_known(rich: Registry) -> None:
    digest = rich.resolve("best")
    shutil.rmtree(rich.path("best"))
    before = rich.newest(9)
    rich.reindex()
    assert rich.newest(9) == before
    assert {move.after for move in rich.aliases()} == {digest}


def test_index_that_is_no_database_is_kept_as_evidence_and_made_anew(rich: Registry) -> None:
    before = answers(home_of(rich))
    lose_index(home_of(rich))
    index = home_of(rich) / "index.sqlite"
    index.write_bytes(b"not a database" * 1000)
    with pytest.raises(IndexDamaged, match="aorlta-reg reindex"):
        Registry(rich.home).newest(9)
    done = Registry(rich.home).reindex()
    assert done.set_aside is not None
    assert Path(done.set_aside).read_bytes() == b"not a database" * 1000
    assert answers(home_of(rich)) == before


def test_reindex_that_fails_leaves_the_index_and_the_words_of_the_killed(rich: Registry) -> None:
    before = rich.newest(9)
    left = comparison(before[0].digest, at=9, vllm="partial")
    LocalStore(rich.home).announce(left)
    with sqlite3.connect(home_of(rich) / "index.sqlite") as connection:
        connection.execute("CREATE TRIGGER full BEFORE INSERT ON exports BEGIN SELECT RAISE(FAIL, 'full'); END")
    connection.close()
    with pytest.raises(StorageError, match="full"):
        rich.reindex()
    assert [each.digest for each in announced(rich)] == [left.digest]
    with sqlite3.connect(home_of(rich) / "index.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM adapters").fetchone() == (3,)
        connection.execute("DROP TRIGGER full")
    connection.close()
    assert rich.newest(9)[0].verdict == "partial"


def test_progress_reaches_the_end_by_steps(rich: Registry) -> None:
    steps: list[tuple[int, int]] = []
    rich.reindex(lambda count, total: steps.append((count, total)))
    assert len(steps) == 3
    assert all(count >= 0 for count, _ in steps)
    assert 0 < sum(count for count, _ in steps) <= steps[0][1]


@pytest.mark.parametrize("ask", [lambda r: r.newest(9), lambda r: r.aliases()])
def test_asking_a_registry_that_does_not_exist_makes_none(ask: Callable[[Registry], list[object]], home: Path) -> None:
    assert ask(Registry(home)) == []
    assert not home.exists()
