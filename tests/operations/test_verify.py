"""Verify: whatever is wrong is told, all of it at once, and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from registry import Digest, NotFound, Refused, Registry
from registry.core import records
from registry.core.layout import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS
from registry.core.records import Record
from registry.operations.settle import settle
from registry.operations.verify import Check, Verified, verify
from registry.store import LocalStore
from tests.support.answers import lose_index
from tests.support.scoring import add_run
from tests.support.trees import flip, rewrite, snapshot

NOTHING: dict[Digest | None, set[Check]] = {}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Digest]]:
    root = tmp_path_factory.mktemp("shelf")
    registry = Registry(root / "home")
    digests = add_run(registry, root, "r", (1, 2, 3))
    registry.set_alias("prod", digests[0].hex)
    return root / "home", digests


@pytest.fixture
def registry(shelf: tuple[Path, list[Digest]], tmp_path: Path) -> Registry:
    shutil.copytree(shelf[0], tmp_path / "home")
    return Registry(tmp_path / "home", note=lambda _: None)


def place(registry: Registry, digest: Digest, name: str = "") -> Path:
    return Path(registry.home) / "adapters" / digest.hex[:2] / digest.hex / name


def record_files(registry: Registry, digest: Digest, kind: str = records.EXPORT) -> list[Path]:
    return sorted((Path(registry.home) / "records" / digest.hex[:2] / digest.hex).glob(f"{kind}-*.json"))


def told(done: Verified) -> dict[Digest | None, set[Check]]:
    found: dict[Digest | None, set[Check]] = {}
    for each in done.findings:
        found.setdefault(each.digest, set()).add(each.check)
    return found


def another_export(registry: Registry, digest: Digest) -> dict[str, Any]:
    """What a record of another, earlier export of the same adapter states."""
    (record,) = record_files(registry, digest)
    stated: dict[str, Any] = json.loads(record.read_text())["predicate"]
    stated["checkpoint"]["sha256"] = "e" * 64
    return stated


def keep(registry: Registry, record: Record) -> Path:
    """Put a record into the store and the index; where it lies."""
    settle(LocalStore(registry.home), registry._opened.mended(), [record])
    LocalStore(registry.home).put_record(record)
    LocalStore(registry.home).settle(record)
    return Path(registry.home) / "records" / record.subject.hex[:2] / record.subject.hex / record.name


def execute(registry: Registry, statement: str, *values: object) -> None:
    connection = sqlite3.connect(Path(registry.home) / "index.sqlite")
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_sound_registry_has_no_findings_and_every_byte_of_it_was_read(
    registry: Registry, adapters: list[Digest]
) -> None:
    steps: list[tuple[int, int]] = []
    done = registry.verify(progress=lambda count, total: steps.append((count, total)))
    files = [place(registry, digest, name) for digest in adapters for name in ADAPTER_FILES]
    assert (told(done), done.checked, done.seed, done.notes) == (NOTHING, 3, None, ())
    assert done.bytes == sum(count for count, _ in steps) == sum(path.stat().st_size for path in files)
    assert {total for _, total in steps} == {done.bytes}


@pytest.mark.parametrize(
    ("name", "checks"),
    [(WEIGHTS, {Check.BYTES}), (CONFIG, {Check.BYTES}), (MANIFEST, {Check.SEAL})],
)
def test_any_file_with_one_bit_flipped_is_named_with_both_digests(
    name: str, checks: set[Check], registry: Registry, adapters: list[Digest]
) -> None:
    flip(place(registry, adapters[1], name))
    done = registry.verify()
    assert told(done).keys() == {adapters[1]}
    assert checks <= told(done)[adapters[1]]
    finding = next(each for each in done.findings if each.check in checks)
    assert name in str(finding.error)
    assert "--repair" in str(finding.error)
    assert told(registry.verify(adapters[1].hex)) == told(done), "alone it is told as among all"
    assert told(registry.verify(adapters[0].hex, adapters[2].hex)) == NOTHING


@pytest.mark.parametrize("length", [0, 4, 100, -1])
@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_file_that_was_cut_short_is_found(name: str, length: int, registry: Registry, adapters: list[Digest]) -> None:
    path = place(registry, adapters[0], name)
    rewrite(path, path.read_bytes()[:length])
    assert told(registry.verify()).keys() == {adapters[0]}


@pytest.mark.parametrize("length", [2**63, 200_000_000])
def test_header_that_says_it_is_huge_is_found_and_not_believed(
    length: int, registry: Registry, adapters: list[Digest]
) -> None:
    path = place(registry, adapters[0], WEIGHTS)
    rewrite(path, length.to_bytes(8, "little") + path.read_bytes()[8:])
    assert told(registry.verify()) == {adapters[0]: {Check.BYTES, Check.CONTENTS}}


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_missing_file_is_told_once(name: str, registry: Registry, adapters: list[Digest]) -> None:
    place(registry, adapters[0], name).unlink()
    (finding,) = registry.verify().findings
    assert (finding.digest, name in str(finding.error)) == (adapters[0], True)


def test_config_of_another_rank_is_held_against_the_tensors_too(registry: Registry, adapters: list[Digest]) -> None:
    path = place(registry, adapters[0], CONFIG)
    config = json.loads(path.read_text())
    rewrite(path, json.dumps({**config, "r": 5}).encode())
    assert told(registry.verify()) == {adapters[0]: {Check.BYTES, Check.CONTENTS}}


def test_files_that_two_adapters_swapped_are_found_in_both(registry: Registry, adapters: list[Digest]) -> None:
    one, two = (place(registry, digest) for digest in adapters[:2])
    one.rename(one.with_name("aside"))
    two.rename(one)
    one.with_name("aside").rename(two)
    done = registry.verify()
    assert told(done).keys() == {*adapters[:2]}
    assert all({Check.SEAL, Check.BYTES} <= checks for checks in told(done).values())


def test_file_that_belongs_to_no_adapter_is_found(registry: Registry, adapters: list[Digest]) -> None:
    (place(registry, adapters[0]) / "adapter_model.bin").write_bytes(b"")
    (finding,) = registry.verify().findings
    assert (finding.digest, finding.check) == (adapters[0], Check.FILES)
    assert "adapter_model.bin" in str(finding.error)


def test_link_in_the_place_of_a_file_is_found_although_its_bytes_match(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    path = place(registry, adapters[0], WEIGHTS)
    shutil.copy(path, tmp_path / "same")
    path.unlink()
    path.symlink_to(tmp_path / "same")
    done = registry.verify()
    assert told(done) == {adapters[0]: {Check.BYTES}}
    assert "link" in str(done.findings[0].error)


def test_damaged_record_is_named_and_hides_no_other(registry: Registry, adapters: list[Digest]) -> None:
    (alias,) = record_files(registry, adapters[0], records.ALIAS)
    flip(alias)
    done = registry.verify()
    named = [each for each in done.findings if each.check is Check.RECORD]
    assert [each.error.path for each in named] == [str(alias)]
    assert told(done)[None] == {Check.INDEX}, "the index has an alias that no record states"


def test_export_record_that_is_lost_is_told_from_the_manifest(registry: Registry, adapters: list[Digest]) -> None:
    (record,) = record_files(registry, adapters[1])
    record.unlink()
    done = registry.verify()
    assert told(done) == {adapters[1]: {Check.RECORD}}
    assert MANIFEST in str(done.findings[0].error)


def test_adapter_whose_files_are_gone_without_a_removal_is_found_and_a_removed_one_is_not(
    registry: Registry, adapters: list[Digest]
) -> None:
    registry.remove(adapters[2].hex)
    shutil.rmtree(place(registry, adapters[1]))
    done = registry.verify()
    assert (told(done), done.checked) == ({adapters[1]: {Check.FILES}}, 1)
    with pytest.raises(NotFound):
        registry.verify(adapters[2].hex)


def test_adapter_that_came_back_after_its_removal_is_found(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    shutil.copytree(place(registry, adapters[1]), tmp_path / "kept")
    registry.remove(adapters[1].hex)
    shutil.copytree(tmp_path / "kept", place(registry, adapters[1]))
    done = registry.verify()
    assert told(done) == {adapters[1]: {Check.RECORD}}
    assert "although it was removed" in str(done.findings[0].error)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [(WEIGHTS, "bytes", 1), (CONFIG, "bytes", 1), (CONFIG, "bytes", None), (WEIGHTS, "sha256", "f" * 64)],
)
def test_export_record_that_states_what_is_not_so_is_named(
    name: str, key: str, value: object, registry: Registry, adapters: list[Digest]
) -> None:
    untrue = another_export(registry, adapters[0])
    untrue["adapter"][name][key] = value
    record = keep(registry, records.make(records.EXPORT, adapters[0], untrue))
    done = registry.verify()
    assert told(done).keys() == {adapters[0]}
    assert told(done)[adapters[0]] <= {Check.RECORD, Check.INDEX}, "the index may have believed the other export"
    (finding,) = (each for each in done.findings if each.check is Check.RECORD)
    assert finding.error.path == str(record)
    assert (name in str(finding.error), key in str(finding.error)) == (True, True)
    assert "--repair" not in str(finding.error), "the files are sound"
    assert told(registry.verify(adapters[0].hex)) == told(registry.verify())


def test_length_of_another_config_is_no_matter(registry: Registry, adapters: list[Digest]) -> None:
    """Of an export from before the adapter was removed, and added again with another text of its config."""
    earlier = another_export(registry, adapters[0])
    earlier["adapter"][CONFIG] = {"sha256": "f" * 64, "bytes": 1}
    keep(registry, records.make(records.EXPORT, adapters[0], earlier))
    assert told(registry.verify()) == NOTHING


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE adapters SET lora_alpha = 9 WHERE digest = ?",
        "UPDATE adapters SET removed_at = '2020-01-01T00:00:00.000000Z' WHERE digest = ?",
        "UPDATE exports SET iteration = 7 WHERE adapter_id = (SELECT id FROM adapters WHERE digest = ?)",
    ],
)
def test_row_of_the_index_that_says_otherwise_is_found(
    statement: str, registry: Registry, adapters: list[Digest]
) -> None:
    execute(registry, statement, adapters[1].hex)
    assert told(registry.verify()) == {adapters[1]: {Check.INDEX}}
    assert told(registry.verify(adapters[1].hex)) == {adapters[1]: {Check.INDEX}}
    assert told(registry.verify(adapters[0].hex)) == NOTHING
    registry.reindex()
    assert told(registry.verify()) == NOTHING, "as the finding advises"


def test_adapter_that_only_the_index_knows_is_found(registry: Registry, adapters: list[Digest]) -> None:
    execute(registry, "UPDATE adapters SET digest = ? WHERE digest = ?", "f" * 64, adapters[1].hex)
    assert told(registry.verify()) == {Digest("f" * 64): {Check.INDEX}, adapters[1]: {Check.INDEX}}


def test_all_that_is_wrong_is_told_at_once_and_nothing_is_changed(registry: Registry, adapters: list[Digest]) -> None:
    one, two, three = adapters
    flip(place(registry, one, WEIGHTS))
    place(registry, two, CONFIG).unlink()
    flip(place(registry, three, MANIFEST))
    (place(registry, three) / "note").write_text("?")
    flip(record_files(registry, one)[0])
    execute(registry, "UPDATE adapters SET r = 7 WHERE digest = ?", two.hex)
    before = snapshot(*(Path(registry.home) / name for name in ("adapters", "records", "pending", "staging")))
    done = registry.verify()
    assert {Check.SEAL, Check.BYTES, Check.RECORD} <= told(done)[one]
    assert told(done)[two] == {Check.BYTES, Check.INDEX}
    assert {Check.SEAL, Check.FILES} <= told(done)[three]
    after = snapshot(*(Path(registry.home) / name for name in ("adapters", "records", "pending", "staging")))
    assert after == before
    assert told(registry.verify()) == told(done)


def test_findings_of_no_adapter_come_first_and_the_others_adapter_by_adapter(
    registry: Registry, adapters: list[Digest]
) -> None:
    first, second, third = sorted(adapters)
    lose_index(Path(registry.home))
    (Path(registry.home) / "index.sqlite").write_bytes(b"no database " * 1000)
    flip(place(registry, first, WEIGHTS))
    flip(place(registry, second, WEIGHTS))
    for digest in (second, third):  # looked at before any file is
        flip(record_files(registry, digest)[0])
    done = Registry(registry.home, note=lambda _: None).verify()
    named = [each.digest for each in done.findings]
    assert named[0] is None
    assert list(dict.fromkeys(named[1:])) == [first, second, third]
    assert named[1:] == sorted(adapter for adapter in named if adapter is not None)


@pytest.mark.parametrize("damage", ["lost", "garbage"])
def test_index_that_is_lost_is_made_anew_and_one_that_is_none_is_a_finding(
    damage: str, registry: Registry, adapters: list[Digest]
) -> None:
    lose_index(Path(registry.home))
    if damage == "garbage":
        (Path(registry.home) / "index.sqlite").write_bytes(b"no database " * 1000)
    flip(place(registry, adapters[0], WEIGHTS))
    done = Registry(registry.home, note=lambda _: None).verify()
    index = {} if damage == "lost" else {None: {Check.INDEX}}
    assert told(done) == {adapters[0]: {Check.BYTES}, **index}


def test_share_is_random_repeatable_and_at_least_one(registry: Registry, adapters: list[Digest]) -> None:
    for digest in adapters:
        flip(place(registry, digest, WEIGHTS))
    seen = {frozenset(told(registry.verify(share=0.01, seed=seed))) for seed in range(20)}
    assert seen == {frozenset({digest}) for digest in adapters}
    done = registry.verify(share=0.67)
    assert (done.checked, len(done.findings)) == (2, 2)
    assert done.seed is not None
    assert told(registry.verify(share=0.67, seed=done.seed)) == told(done)
    for share in (0, -1, 1.01, float("nan")):
        with pytest.raises(Refused):
            registry.verify(share=share)
    with pytest.raises(Refused):
        registry.verify(adapters[0].hex, share=0.5)


@pytest.mark.parametrize("kind", [records.EXPORT, records.ALIAS])
def test_what_was_announced_more_than_a_week_ago_is_noted_and_is_no_finding(
    kind: str, registry: Registry, adapters: list[Digest]
) -> None:
    """Who only looks, as where the registry is read-only, finishes nothing."""
    store, index = LocalStore(registry.home), registry._opened.mended()
    key, at = {records.EXPORT: "exported_at", records.ALIAS: "moved_at"}[kind], "2026-03-01T00:00:00.000000Z"
    waiting = records.make(kind, adapters[0], {key: at})
    store.announce(waiting)
    store.announce(records.make(kind, adapters[1], {key: "once"}))
    notes = {}
    for now in ("2026-03-08T00:00:00.000000Z", "2026-03-08T00:00:00.000001Z"):
        done = verify(store, index, None, now=now)
        assert told(done) == NOTHING
        notes[now] = [waiting.name in note for note in done.notes]
    assert [*notes.values()] == [[], [True]]
    assert verify(store, index, [adapters[0]], now="2999-01-01T00:00:00.000000Z").notes == ()


def test_what_does_not_belong_into_the_store_is_noted_and_is_no_finding(
    registry: Registry, adapters: list[Digest]
) -> None:
    home, digest = Path(registry.home), adapters[0].hex
    strays = [
        home / "adapters" / ".DS_Store",
        home / "adapters" / digest[:2] / "copy of it",
        home / "adapters" / "zz" / digest,
        home / "records" / digest[:2] / digest / "export.json~",
        home / "records" / "ab" / ("ab" * 32),
        home / "pending" / "bidi\u202e\x1b[31m",
        home / "staging" / "mine",
    ]
    for path in strays:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    strays[2] = strays[2].parent
    done = registry.verify()
    assert (told(done), done.checked) == (NOTHING, 3)
    assert sorted(note.partition(": ")[2].rpartition(". ")[0] for note in done.notes) == sorted(map(str, strays))
    for number in range(30):
        (home / "pending" / f"stray-{number}").write_bytes(b"")
    crowd = registry.verify().notes
    assert (len(crowd), "17 more" in crowd[-1]) == (21, True)
    assert [path for path in strays if not path.exists()] == [], "nothing is changed"


def test_records_that_may_not_be_listed_are_a_finding_and_the_others_are_checked(
    registry: Registry, adapters: list[Digest]
) -> None:
    directory = record_files(registry, adapters[0])[0].parent
    shutil.move(directory, directory.with_name("elsewhere"))
    os.mkfifo(directory)
    flip(place(registry, adapters[1], WEIGHTS))
    found = told(registry.verify())
    assert Check.RECORD in found[adapters[0]]
    assert Check.BYTES in found[adapters[1]]


def test_adapter_in_a_place_that_is_not_its_own_is_noted_and_not_counted(
    registry: Registry, adapters: list[Digest]
) -> None:
    home = Path(registry.home)
    shutil.copytree(place(registry, adapters[0]), home / "adapters" / "00" / ("f" * 64))
    shutil.copytree(record_files(registry, adapters[0])[0].parent, home / "records" / "00" / ("f" * 64))
    done = registry.verify()
    assert (told(done), done.checked, len(done.notes)) == (NOTHING, 3, 2)


def test_link_in_the_place_of_the_staging_directory_is_a_finding(registry: Registry, tmp_path: Path) -> None:
    staging = Path(registry.home) / "staging"
    shutil.rmtree(staging)
    staging.symlink_to(tmp_path)
    assert told(registry.verify()) == {None: {Check.RECORD}}


def test_what_is_kept_in_quarantine_is_counted(registry: Registry, adapters: list[Digest]) -> None:
    LocalStore(registry.home).set_aside(adapters[0])
    done = registry.verify()
    assert (done.quarantined, told(done)) == (1, {adapters[0]: {Check.FILES}})


def test_registry_that_there_is_not_is_sound_and_stays_away(tmp_path: Path) -> None:
    done = Registry(tmp_path / "none").verify(share=0.5)
    assert (done.checked, told(done), os.listdir(tmp_path)) == (0, NOTHING, [])


def test_interrupt_while_files_are_hashed_is_passed_on(registry: Registry, adapters: list[Digest]) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    assert adapters
    with pytest.raises(KeyboardInterrupt):
        registry.verify(progress=interrupt)


def test_adapter_that_is_added_while_files_are_hashed_is_no_finding(registry: Registry, tmp_path: Path) -> None:
    added: list[Digest] = []

    def add(_done: int, _total: int) -> None:
        if not added:
            added.extend(add_run(Registry(registry.home), tmp_path, "late", (1,), seed=9))

    done = registry.verify(progress=add)
    assert (told(done), done.checked, len(added)) == (NOTHING, 3, 1)
    assert registry.verify().checked == 4
