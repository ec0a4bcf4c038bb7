"""Removing: refused while somebody relies on the adapter, told by all that meets it, undone by add."""

from __future__ import annotations

import json
import shutil
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from registry import Conflict, Digest, IntegrityError, NotFound, Registry
from registry.checkpoints import read_checkpoint
from registry.core import records
from registry.core.errors import IndexMissing
from registry.core.layout import ADAPTER_FILES, WEIGHTS
from registry.core.records import Record
from registry.core.refs import AliasName
from registry.operations import mend
from registry.operations.add import add
from registry.operations.alias import move
from registry.operations.export import prepare
from registry.operations.reindex import reindex
from registry.operations.remove import remove
from registry.operations.settle import settle
from registry.store import LocalStore
from tests.support.answers import lose_index
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import contents as files_in
from tests.support.trees import flip

FUTURE = "2999-01-01T00:00:00.000000Z"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The parent `r1@1`; `r2@1`, which started from it; and `r1@2`, from which `r3@1` was resumed."""
    root = tmp_path_factory.mktemp("runs")
    parent = write_checkpoint(root / "r1", contents(lora_state(seed=0), iteration=1), iteration=1)
    digest = str(Registry(root / "home").add(parent).digest)
    second = write_checkpoint(root / "r1", contents(lora_state(seed=1), iteration=2), iteration=2)
    resumed = json.loads((second / "manifest.json").read_text())["files"]["trainer.pt"]["sha256"]
    started = {"run_id": "r2", "model": {"base": "org/base", "adapter": digest}, "lora": {"r": 4, "alpha": 8}}
    went_on = {"run_id": "r3", "resume": {"checkpoint": resumed}, "lora": {"r": 4, "alpha": 8}}
    return [
        parent,
        second,
        write_checkpoint(root / "r2", contents(lora_state(seed=2), iteration=1), iteration=1, config=started),
        write_checkpoint(root / "r3", contents(lora_state(seed=3), iteration=1), iteration=1, config=went_on),
    ]


@pytest.fixture(scope="module")
def shelf(checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Digest]]:
    home = tmp_path_factory.mktemp("shelf") / "home"
    return home, [Registry(home).add(checkpoint).digest for checkpoint in checkpoints]


def store_of(registry: Registry) -> LocalStore:
    return LocalStore(registry.home)


def listed(registry: Registry) -> set[Digest]:
    return {each.digest for each in registry.newest(99)}


def removals(registry: Registry, digest: Digest) -> list[Record]:
    return store_of(registry).records(digest, records.REMOVAL)


def score(adapter: Digest) -> Record:
    facts = {
        "score_run": {"name": "eval", "path": "/evals/7", "result": {"sha256": "a" * 64, "bytes": 9}, "config": None},
        "status": "completed",
        "scores": {"accuracy": 0.5},
        "scored_at": "2026-04-01T00:00:00.000000Z",
        "scored_by": "someone@somewhere",
    }
    return records.make(records.SCORE, adapter, facts)


def test_removed_adapter_is_gone_and_its_record_says_when_by_whom_and_why(
    registry: Registry, adapters: list[Digest]
) -> None:
    child = adapters[2]
    directory = Path(registry.path(child.hex))
    size = sum(len(data) for data in files_in(directory).values())
    assert {path.stat().st_mode & 0o222 for path in directory.iterdir()} == {0}, "read-only files go too"
    removed = registry.remove("r2@1", reason="served nothing")
    assert (removed.digest, removed.bytes, removed.overrode) == (child, size, ())
    assert not directory.exists()
    assert listed(registry) == {*adapters} - {child}
    (record,) = removals(registry, child)
    assert record.digest == removed.record
    assert record.predicate == {
        "format": 1,
        "reason": "served nothing",
        "overrode": [],
        "bytes": size,
        "removed_at": removed.removed_at,
        "removed_by": registry.set_alias("who", adapters[0].hex).move.moved_by,
    }
    assert store_of(registry).unsettled() == []
    assert list((Path(registry.home) / "staging").iterdir()) == []


def test_everything_that_meets_a_removed_adapter_says_so_and_how_to_have_it_again(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path], tmp_path: Path
) -> None:
    child = adapters[2]
    registry.set_alias("prod", child.hex)
    removed = registry.remove(child.hex, reason="wrong\ndata", force=True)
    for index in ("there", "lost"):
        if index == "lost":
            lose_index(Path(registry.home))
        fresh = Registry(registry.home, note=lambda _: None)
        for ask in (fresh.show, fresh.path, fresh.resolve, fresh.remove, partial(fresh.get, to=tmp_path / "out")):
            for reference in (child.hex, str(child), "prod", "r2@1", "r2@latest"):
                with pytest.raises(NotFound) as caught:
                    ask(reference)
                message = str(caught.value)
                assert f"removed at {removed.removed_at} by {removals(registry, child)[0].predicate['removed_by']}" in (
                    message
                )
                assert "wrong\ndata" in message
                assert caught.value.key == str(child)
                assert str(checkpoints[2] / "trainer.pt") in (caught.value.hint or "")
        with pytest.raises(NotFound, match="removed at"):
            fresh.set_alias("other", child.hex)
    assert not (tmp_path / "out").exists()
    assert len(removals(registry, child)) == 1


@pytest.mark.parametrize("place", [0, 1], ids=["warm start", "resumed"])
def test_parent_is_refused_and_its_child_named_until_that_is_gone(
    place: int, registry: Registry, adapters: list[Digest]
) -> None:
    parent, child = adapters[place], adapters[place + 2]
    with pytest.raises(Conflict) as caught:
        registry.remove(parent.hex)
    assert str(child) in str(caught.value)
    assert "--force" in str(caught.value)
    assert registry.path(parent.hex)
    assert removals(registry, parent) == []
    registry.remove(child.hex)
    assert registry.remove(parent.hex).overrode == ()


def test_aliased_scored_parent_goes_by_force_only_and_the_record_names_all_three(
    registry: Registry, adapters: list[Digest]
) -> None:
    parent, _, child, _ = adapters
    registry.set_alias("prod", parent.hex)
    store_of(registry).put_record(score(parent))
    with pytest.raises(Conflict) as caught:
        registry.remove("prod")
    assert caught.value.found == f"alias prod, score run /evals/7, child {child}"
    for way in ("alias remove", "score runs", "trained from it", "--force"):
        assert way in (caught.value.hint or "")
    assert registry.path("prod")
    registry.remove("prod", force=True)
    (record,) = removals(registry, parent)
    assert record.predicate["overrode"] == [
        {"kind": "alias", "name": "prod"},
        {"kind": "score run", "name": "/evals/7"},
        {"kind": "child", "name": str(child)},
    ]
    assert [move.after for move in registry.aliases()] == [parent], "the alias stays, and leads nowhere"
    registry.set_alias("prod", child.hex, expect=parent.hex)
    assert registry.resolve("prod") == child


def test_many_who_rely_on_it_are_all_recorded_and_some_named(registry: Registry, adapters: list[Digest]) -> None:
    for number in range(12):
        registry.set_alias(f"x{number:02}", adapters[3].hex)
    with pytest.raises(Conflict, match=r"alias x09, \.\.\.") as caught:
        registry.remove(adapters[3].hex)
    assert "x10" not in str(caught.value)
    assert len(registry.remove(adapters[3].hex, force=True).overrode) == 12


def test_all_ways_out_are_named_that_there_are_and_no_others(registry: Registry, adapters: list[Digest]) -> None:
    registry.set_alias("prod", adapters[2].hex)
    registry.set_alias("best", adapters[0].hex)
    hints = {}
    for digest in (adapters[2], adapters[0]):
        with pytest.raises(Conflict) as caught:
            registry.remove(digest.hex)
        hints[digest] = str(caught.value.hint)
    alias, forced = "Move or remove the aliases (`aorlta-reg alias remove NAME`)", "; or give --force, and"
    assert hints[adapters[2]].startswith(f"{alias}{forced}")
    assert hints[adapters[0]].startswith(f"{alias}; remove what was trained from it first{forced}")


@pytest.mark.parametrize(("count", "more"), [(10, False), (11, True)])
def test_ten_who_rely_on_it_are_named_and_that_there_are_more(
    count: int, more: bool, registry: Registry, adapters: list[Digest]
) -> None:
    for number in range(count):
        registry.set_alias(f"name{number:02}", adapters[2].hex)
    with pytest.raises(Conflict) as caught:
        registry.remove(adapters[2].hex)
    named = [f"alias name{number:02}" for number in range(10)]
    assert caught.value.found == ", ".join([*named, "..."] if more else named)


@pytest.mark.parametrize("reason", [None, "", " \n"])
def test_no_reason_is_null(reason: str | None, registry: Registry, adapters: list[Digest]) -> None:
    assert registry.remove(adapters[3].hex, reason=reason).reason is None
    assert removals(registry, adapters[3])[0].predicate["reason"] is None
    with pytest.raises(NotFound, match=r"by [^:]+@[^:]+\. Add its"):
        registry.show(adapters[3].hex)


def test_reason_of_any_characters_is_kept_and_said_in_short(registry: Registry, adapters: list[Digest]) -> None:
    reason = "\udcff\x1b[31m\u202e\x00日本" + "z" * 100_000
    registry.remove(adapters[3].hex, reason=reason)
    kept = removals(registry, adapters[3])[0].predicate["reason"]
    assert kept == reason.replace("\udcff", "\\udcff")
    with pytest.raises(NotFound) as caught:
        registry.show(adapters[3].hex)
    assert kept[:100] in str(caught.value)
    assert len(str(caught.value)) < 1000
    lose_index(Path(registry.home))
    assert Registry(registry.home).reindex().damaged == ()


def test_added_again_it_is_listed_with_a_new_export_and_its_manifest_is_that_record(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path]
) -> None:
    child = adapters[2]
    before = registry.show(child.hex)
    removed = registry.remove(child.hex)
    again = registry.add(checkpoints[2])
    assert (again.digest, again.outcome, again.new_export, again.damage) == (child, "added", True, None)
    assert again.manifest["exported_at"] > removed.removed_at
    manifest = json.loads((Path(registry.path(child.hex)) / "export-manifest.json").read_bytes())
    assert manifest == again.manifest
    shown = registry.show(child.hex)
    assert shown.removed_at is None
    assert shown.first_exported_at == before.first_exported_at
    assert [each.exported_at for each in shown.exports] == [before.first_exported_at, manifest["exported_at"]]
    assert shown in registry.newest(99)
    third = registry.add(checkpoints[2])
    assert (third.outcome, third.new_export) == ("already present", False)
    assert store_of(registry).unsettled() == []


def test_removed_by_a_clock_that_goes_ahead_it_can_still_be_added_again_and_removed_again(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path]
) -> None:
    child, store = adapters[2], store_of(registry)
    removed = remove(store, registry._opened.mended(), child, now=FUTURE, who="other@host")
    assert removed.removed_at == FUTURE
    again = registry.add(checkpoints[2])
    assert again.manifest["exported_at"] == FUTURE.replace("000000Z", "000001Z")
    assert child in listed(registry)
    assert registry.remove(child.hex).removed_at == FUTURE.replace("000000Z", "000002Z")
    assert child not in listed(registry)
    registry.reindex()
    assert child not in listed(registry)
    registry.add(checkpoints[2])
    registry.reindex()
    assert child in listed(registry)


def test_removed_from_a_full_registry_to_an_empty_one_it_is_not_taken_for_lost(
    home: Path, checkpoints: list[Path]
) -> None:
    notes: list[str] = []
    registry = Registry(home, note=notes.append)
    digest = registry.add(checkpoints[0]).digest
    registry.remove(digest.hex)
    assert Registry(home, note=notes.append).newest(9) == []
    lose_index(home)
    assert Registry(home, note=notes.append).newest(9) == []
    assert notes == ["the index was missing: made anew from 2 records"]
    with pytest.raises(NotFound, match="no such adapter in the store"):
        registry.remove("f" * 64)


def test_another_with_the_same_tensors_is_no_longer_named(registry: Registry, tmp_path: Path) -> None:
    strong = write_checkpoint(tmp_path / "strong", contents(lora_state(seed=2), alpha=16), config={})
    other = registry.add(strong).digest
    assert registry.show("r2@1").same_tensors == (other,)
    registry.remove(other.hex)
    assert registry.show("r2@1").same_tensors == ()


def test_of_two_adapters_of_an_iteration_the_one_that_is_there_is_meant(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    twin = write_checkpoint(tmp_path / "r2", contents(lora_state(seed=7), iteration=1), iteration=1)
    digest = registry.add(twin).digest
    registry.remove(adapters[2].hex)
    assert registry.resolve("r2@1") == registry.resolve("r2@latest") == digest


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "export-manifest.json"])
def test_damaged_adapter_can_be_removed(name: str, registry: Registry, adapters: list[Digest]) -> None:
    file = Path(registry.path(adapters[3].hex)) / name
    file.unlink()
    file.mkdir()
    registry.remove(adapters[3].hex)
    assert adapters[3] not in listed(registry)
    assert not file.exists()


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_adapter_without_one_of_its_files_can_be_removed_and_the_others_are_counted(
    name: str, registry: Registry, adapters: list[Digest]
) -> None:
    directory = Path(registry.path(adapters[2].hex))
    (directory / name).unlink()
    left = sum(path.stat().st_size for path in directory.iterdir())
    assert registry.remove(adapters[2].hex).bytes == left > 0
    assert not directory.exists()


def test_export_that_only_the_manifest_states_is_recorded_indexed_and_settled_with_the_removal(
    registry: Registry, adapters: list[Digest]
) -> None:
    (export,) = store_of(registry).records(adapters[2], records.EXPORT)
    assert export.path is not None
    Path(export.path).unlink()
    opened = registry._opened.mended()
    with sqlite3.connect(Path(registry.home) / "index.sqlite") as connection:  # nor had the index come to know it
        connection.execute("DELETE FROM exports WHERE record = ?", (export.digest.hex,))
        connection.execute("DELETE FROM adapters WHERE digest = ?", (adapters[2].hex,))
    connection.close()
    remove(store_of(registry), opened, adapters[2], now=FUTURE, who="me")
    assert Path(export.path).read_bytes() == export.data
    assert store_of(registry).unsettled() == []
    assert [change for change in registry.reindex().changes if change.added or change.removed or change.changed] == []


def test_what_others_had_announced_is_settled_with_the_removal(registry: Registry, adapters: list[Digest]) -> None:
    opened = registry._opened.mended()
    store_of(registry).announce(score(adapters[1]))
    remove(store_of(registry), opened, adapters[2], now=FUTURE, who="me")
    assert store_of(registry).unsettled() == []
    assert [each.kind for each in store_of(registry).records(adapters[1])] == [records.EXPORT, records.SCORE]


def test_adapter_whose_record_was_lost_is_removed_with_what_its_manifest_says(
    registry: Registry, adapters: list[Digest]
) -> None:
    child = adapters[2]
    (record,) = (Path(registry.home) / "records" / child.hex[:2] / child.hex).iterdir()
    data = record.read_bytes()
    record.unlink()
    registry.remove(child.hex)
    assert record.read_bytes() == data
    lose_index(Path(registry.home))
    assert Registry(registry.home).reindex().damaged == ()
    assert child not in listed(registry)


def test_damaged_record_keeps_the_adapter_and_is_named(registry: Registry, adapters: list[Digest]) -> None:
    (record,) = (Path(registry.home) / "records" / adapters[3].hex[:2] / adapters[3].hex).iterdir()
    flip(record)
    with pytest.raises(IntegrityError, match=record.name):
        registry.remove(adapters[3].hex)
    flip(record)
    assert registry.path(adapters[3].hex)
    assert store_of(registry).unsettled() == []


def test_missing_index_of_a_large_store_removes_nothing(
    registry: Registry, adapters: list[Digest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mend, "FEW", 2)
    lose_index(Path(registry.home))
    with pytest.raises(IndexMissing, match="aorlta-reg reindex"):
        Registry(registry.home).remove(adapters[3].hex)
    assert registry.path(adapters[3].hex)
    assert removals(registry, adapters[3]) == []


def test_removed_in_a_store_whose_index_is_missing_it_is_added_all_the_same(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = adapters[2]
    registry.remove(child.hex)
    monkeypatch.setattr(mend, "FEW", 2)
    lose_index(Path(registry.home))
    late = Registry(registry.home, note=lambda _: None)
    assert late.add(checkpoints[2]).new_export
    assert late.path(child.hex)
    late.reindex()
    assert child in listed(late)


def begun(digest: Digest, at: str) -> Record:
    facts = {"format": 1, "reason": None, "overrode": [], "bytes": 1, "removed_at": at, "removed_by": "dead@host"}
    return records.make(records.REMOVAL, digest, facts)


@pytest.mark.parametrize("state", ["announced", "recorded", "gone"])
@pytest.mark.parametrize("next_command", ["list", "reindex", "add", "alias", "rm"])
def test_removal_that_was_begun_is_finished_by_the_next_command(
    state: str, next_command: str, registry: Registry, adapters: list[Digest], checkpoints: list[Path]
) -> None:
    child, store = adapters[2], store_of(registry)
    left = begun(child, FUTURE)
    (store.announce if state == "announced" else store.put_record)(left)
    if state == "gone":
        store.remove(child)
    fresh = Registry(registry.home)
    match next_command:
        case "list":
            fresh.newest(9)
        case "reindex":
            assert fresh.reindex().damaged == ()
        case "add":
            fresh.add(checkpoints[0])
        case "alias":
            with pytest.raises(NotFound, match="dead@host"):
                fresh.set_alias("prod", child.hex)
        case "rm":
            with pytest.raises(NotFound, match="dead@host"):
                fresh.remove(child.hex)
    assert listed(fresh) == {*adapters} - {child}
    assert not store.contains(child)
    assert [each.digest for each in removals(fresh, child)] == [left.digest]
    assert store.unsettled() == []


def test_removal_that_was_begun_long_ago_does_not_take_what_was_exported_since(
    registry: Registry, adapters: list[Digest]
) -> None:
    child, store = adapters[2], store_of(registry)
    store.announce(left := begun(child, "2020-01-01T00:00:00.000000Z"))
    assert child in listed(registry)
    assert registry.path(child.hex)
    assert store.unsettled() == []
    assert [each.digest for each in removals(registry, child)] == [left.digest]


def test_adding_what_a_killed_remover_left_half_done_gives_a_new_export(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where nobody mends before, because the index is missing."""
    child, store = adapters[2], store_of(registry)
    store.put_record(begun(child, FUTURE))
    monkeypatch.setattr(mend, "FEW", 2)
    lose_index(Path(registry.home))
    late = Registry(registry.home, note=lambda _: None)
    added = late.add(checkpoints[2])
    assert (added.outcome, added.new_export) == ("added", True)
    late.reindex()
    assert listed(late) == {*adapters}
    assert late.path(child.hex)


def test_export_that_was_published_again_and_not_recorded_counts(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path]
) -> None:
    """Its writer was killed between the two: nothing but the announcement knows the stored manifest."""
    child, store = adapters[2], store_of(registry)
    registry.remove(child.hex)
    again = registry.add(checkpoints[2])
    new = next(each for each in store.records(child, records.EXPORT) if each.predicate == again.manifest)
    store.announce(new)
    (Path(registry.home) / "records" / child.hex[:2] / child.hex / new.name).unlink()
    lose_index(Path(registry.home))
    fresh = Registry(registry.home)
    assert fresh.path(child.hex), "a reader needs no index"
    assert child in listed(fresh)
    assert new.digest in {each.digest for each in store.records(child, records.EXPORT)}
    assert store.unsettled() == []


def test_adapter_that_is_stored_although_it_was_removed_is_reported_by_reindex(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path], tmp_path: Path
) -> None:
    child = adapters[2]
    shutil.copytree(registry.path(child.hex), tmp_path / "kept")
    directory = Path(registry.path(child.hex))
    registry.remove(child.hex)
    shutil.copytree(tmp_path / "kept", directory)
    (error,) = registry.reindex().damaged
    assert (error.key, error.problem) == (str(child), "is stored although it was removed")
    assert directory.exists()
    assert registry.add(checkpoints[2]).new_export
    assert registry.reindex().damaged == ()
    assert child in listed(registry)


def test_alias_cannot_be_moved_to_what_has_just_been_removed(registry: Registry, adapters: list[Digest]) -> None:
    """The mover had resolved its reference before, and looks again while it holds the lock."""
    store, index = store_of(registry), registry._opened.mended()
    registry.remove(adapters[3].hex)
    with pytest.raises(NotFound, match="removed at"):
        move(store, index, AliasName("prod"), adapters[3], now=FUTURE, who="someone@somewhere")
    assert registry.aliases() == []


def test_alias_that_a_killed_mover_announced_holds_the_adapter(registry: Registry, adapters: list[Digest]) -> None:
    store, index = store_of(registry), registry._opened.mended()
    facts = {"alias": "prod", "sequence": 1, "from": None, "to": adapters[3].hex, "moved_at": FUTURE, "moved_by": "x@y"}
    store.announce(records.make(records.ALIAS, adapters[3], facts))
    with pytest.raises(Conflict, match="alias prod"):
        remove(store, index, adapters[3], now=FUTURE, who="someone@somewhere")
    assert registry.path("prod")


class Guarded(LocalStore):
    """A store that looks, before it changes, whether anyone else could change the index now."""

    def __init__(self, home: str) -> None:
        super().__init__(home)
        self.index = Path(home) / "index.sqlite"
        self.seen: list[str] = []

    def look(self, change: str) -> None:
        self.seen.append(change)
        connection = sqlite3.connect(self.index, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            connection.execute("BEGIN IMMEDIATE")
        connection.close()

    def announce(self, record: Record) -> None:
        self.look("announce")
        super().announce(record)

    def put_record(self, record: Record) -> None:
        self.look("put")
        super().put_record(record)

    def remove(self, digest: Digest) -> bool:
        self.look("remove")
        return super().remove(digest)


def test_whoever_publishes_records_or_removes_holds_the_lock(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path], tmp_path: Path
) -> None:
    """Or an adapter could be published in the middle of its removal."""
    child, store, index = adapters[2], Guarded(registry.home), registry._opened.mended()
    remove(store, index, child, now=FUTURE, who="someone@somewhere")
    assert store.seen == ["put", "announce", "remove"]
    store.seen.clear()
    again = prepare(read_checkpoint(str(checkpoints[2])))
    exports = add(store, index, again, FUTURE)[1]
    assert store.seen == ["put", "remove", "announce", "put", "announce"], "the first two: nothing is left half removed"
    settle(store, index, exports)
    store.seen.clear()
    twin = write_checkpoint(tmp_path / "twin", contents(lora_state(seed=2), iteration=8))
    exports = add(store, index, prepare(read_checkpoint(str(twin))), FUTURE)[1]
    assert store.seen == ["put", "announce"]
    settle(store, index, exports)
    store.seen.clear()
    LocalStore(registry.home).announce(begun(child, "2998-01-01T00:00:00.000000Z"))
    mend.mend(store, index, FUTURE, lambda _: None)
    assert store.seen == ["put", "announce"], "and nothing is removed that was exported since"
    store.seen.clear()
    LocalStore(registry.home).announce(begun(adapters[3], "2998-01-01T00:00:00.000000Z"))
    reindex(store, index)
    assert store.seen == ["put", "announce", "remove"]


def test_of_six_removers_one_removes_and_the_others_are_told_by_whom(
    registry: Registry, adapters: list[Digest]
) -> None:
    processes = [CommandLine(Path(registry.home)).start("rm", adapters[2].hex, "--json") for _ in range(6)]
    results = [(process.communicate(), process.returncode) for process in processes]
    assert sorted(code for _, code in results) == [0, 3, 3, 3, 3, 3], results
    assert all("removed at" in err for (_, err), code in results if code == 3)
    assert len(removals(registry, adapters[2])) == 1
    assert adapters[2] not in listed(registry)


def test_adders_and_removers_at_once_leave_it_present_and_listed_or_neither(
    registry: Registry, adapters: list[Digest], checkpoints: list[Path]
) -> None:
    child, store = adapters[2], store_of(registry)
    processes = [
        CommandLine(Path(registry.home)).start(*(("rm", child.hex) if number % 2 else ("add", checkpoints[2])))
        for number in range(10)
    ]
    results = [(process.communicate(), process.returncode) for process in processes]
    assert {code for _, code in results} <= {0, 3}, results
    assert all(code == 0 for _, code in results[::2]), results
    assert (child in listed(registry)) == store.contains(child)
    if store.contains(child):
        assert registry.path(child.hex)
    before = listed(registry)
    assert registry.reindex().damaged == ()
    assert listed(registry) == before
    assert store.unsettled() == []


def test_mover_and_remover_at_once_never_leave_an_alias_of_what_is_gone(
    registry: Registry, adapters: list[Digest]
) -> None:
    for round_ in range(3):
        processes = [
            CommandLine(Path(registry.home)).start("alias", "set", f"x{round_}", adapters[3].hex),
            CommandLine(Path(registry.home)).start("rm", adapters[3].hex),
        ]
        for process in processes:
            process.communicate()
        moved, removed = (process.returncode for process in processes)
        assert (moved, removed) in ((0, 6), (3, 0), (3, 3))
        assert registry.aliases() == [] or store_of(registry).contains(adapters[3])


def test_reader_of_a_removed_adapter_reads_on(registry: Registry, adapters: list[Digest]) -> None:
    with store_of(registry).open(adapters[3], WEIGHTS) as file:
        start_ = file.read(100)
        registry.remove(adapters[3].hex)
        assert len(start_ + file.read()) > 100
