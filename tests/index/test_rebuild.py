"""The whole index anew: what differed, who sees what meanwhile, and databases that are none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from registry.core.errors import IndexDamaged, MalformedFile, RegistryError
from registry.core.records import Record
from registry.core.refs import AliasName
from registry.core.summary import IndexChange
from registry.index import Database, Index
from registry.index.rebuild import rebuild
from tests.support.values import digest_of

Make = Callable[..., Record]
NONE = (0, 0, 0)


@pytest.fixture
def everything(exported: Make, compared: Make, moved: Make, scored: Make, removed: Make) -> list[Record]:
    return [
        exported("a", at=1, id="r1", iteration=3),
        exported("a", at=2, id="r2", iteration=None, checkpoint="other"),
        exported("b", at=3, id=None),
        compared("a", rounding="nearest", one="identical", two="partial"),
        moved("best", 1, after="a"),
        moved("best", 2, "a", "b"),
        scored("a", at=1, accuracy=0.25, loss=3),
        scored("a", at=2, accuracy=0.5),
        exported("gone", at=4, id="r1", iteration=4),
        removed("gone"),
    ]


KINDS = {
    "adapters": 3,
    "exports": 4,
    "comparisons": 2,
    "alias moves": 2,
    "score runs": 2,
    "scores": 3,
    "removals": 1,
}
"""How many rows of each kind these records make."""


def refuse(_record: Record, error: RegistryError) -> None:
    raise error


def differences(changes: tuple[IndexChange, ...]) -> dict[str, tuple[int, int, int]]:
    return {each.kind: (each.added, each.removed, each.changed) for each in changes}


def change(database: Path, *statements: str) -> None:
    with sqlite3.connect(database) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def state(index: Index) -> object:
    return index.newest(99), index.aliases(), index.alias_history(AliasName("best"))


def test_rebuilding_what_is_right_changes_nothing(index: Index, everything: list[Record]) -> None:
    index.add(everything)
    before = state(index)
    changes = index.rebuild(everything, refuse)
    assert differences(changes) == dict.fromkeys(KINDS, NONE)
    assert {each.kind: each.rows for each in changes} == KINDS
    assert state(index) == before


def test_rebuilding_an_empty_index_adds_everything(index: Index, everything: list[Record], database: Path) -> None:
    other = Index(Database(str(database.with_name("other.sqlite"))))
    other.add(everything)
    changes = index.rebuild(iter(everything), refuse)
    assert differences(changes) == {kind: (rows, 0, 0) for kind, rows in KINDS.items()}
    assert state(index) == state(other)


@pytest.mark.parametrize(
    ("statements", "kind", "difference"),
    [
        (["DELETE FROM exports WHERE run_id IS NULL"], "exports", (1, 0, 0)),
        (["UPDATE runs SET name = 'other' WHERE name = 'r1'"], "exports", (0, 0, 2)),
        (["UPDATE checkpoints SET bytes = bytes + 1"], "exports", (0, 0, 4)),
        (["UPDATE exports SET iteration = 4 WHERE iteration = 3"], "exports", (0, 0, 2)),
        (["UPDATE exports SET base_revision = NULL"], "exports", (0, 0, 4)),
        (["UPDATE exports SET record = substr(record, 2) || substr(record, 1, 1)"], "exports", (4, 4, 0)),
        (["UPDATE adapters SET lora_alpha = 9"], "adapters", (0, 0, 3)),
        (["UPDATE adapters SET first_exported_at = '2020'"], "adapters", (0, 0, 3)),
        (["UPDATE comparisons SET verdict = 'identical'"], "comparisons", (0, 0, 1)),
        (["DELETE FROM comparisons WHERE engine = 'one'"], "comparisons", (1, 0, 0)),
        (["UPDATE alias_moves SET stands = 1"], "alias moves", (0, 0, 1)),
        (["DELETE FROM alias_moves"], "alias moves", (2, 0, 0)),
        (["UPDATE exports SET warm_start = NULL, resumed_from = 'x' WHERE run_id IS NULL"], "exports", (0, 0, 1)),
        (["UPDATE adapters SET verdict = NULL"], "adapters", (0, 0, 1)),
        (["UPDATE adapters SET removed_at = NULL"], "adapters", (0, 0, 1)),
        (["UPDATE score_runs SET status = 'stopped'"], "score runs", (0, 0, 2)),
        (["UPDATE scores SET stands = 1"], "scores", (0, 0, 1)),
        (["DELETE FROM scores WHERE value = 3"], "scores", (1, 0, 0)),
        (["UPDATE metrics SET name = 'other' WHERE name = 'loss'"], "scores", (1, 1, 0)),
        (["DELETE FROM removals"], "removals", (1, 0, 0)),
    ],
)
def test_what_differed_is_counted_by_kind_and_mended(
    statements: list[str],
    kind: str,
    difference: tuple[int, int, int],
    index: Index,
    everything: list[Record],
    database: Path,
) -> None:
    index.add(everything)
    before = state(index)
    change(database, *statements)
    found = differences(index.rebuild(everything, refuse))
    assert found.pop(kind) == difference
    assert set(found.values()) == {NONE}
    assert state(index) == before


def test_a_rebuild_leaves_the_schema_and_the_settings_as_they_were(
    index: Index, everything: list[Record], database: Path
) -> None:
    def schema() -> list[tuple[str, ...]]:
        with sqlite3.connect(database) as connection:
            found = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        connection.close()
        return found

    index.add(everything)
    before = schema()
    handle = Database(str(database))
    with handle.writing() as connection:
        cache = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
        rebuild(connection, everything, refuse)
        assert connection.exec_driver_sql("PRAGMA cache_size").scalar_one() == cache
    assert schema() == before


def test_rows_that_no_record_states_go(index: Index, everything: list[Record]) -> None:
    index.add(everything)
    found = differences(index.rebuild(everything[:1], refuse))
    changed = found.pop("adapters")
    assert changed == (0, 2, 1)  # without its comparison, the one that stays has no verdict
    assert found == {kind: (0, rows - (kind == "exports"), 0) for kind, rows in KINDS.items() if kind != "adapters"}
    assert [each.digest for each in index.newest(9)] == [digest_of("a")]
    assert index.aliases() == []


def test_a_record_that_says_nothing_is_left_out_and_the_rest_is_there(
    index: Index, everything: list[Record], exported: Make
) -> None:
    bad = exported("c", id=5)
    told = []
    index.rebuild([*everything[:2], bad, *everything[2:]], lambda record, error: told.append((record.digest, error)))
    ((record, error),) = told
    assert record == bad.digest
    assert isinstance(error, MalformedFile)
    assert error.key == "run.id"
    assert len(index.newest(9)) == 2
    assert len(index.aliases()) == 1


def test_readers_see_the_old_index_until_the_new_one_is_whole_and_a_failure_leaves_it(
    index: Index, everything: list[Record], database: Path
) -> None:
    index.add(everything)
    before, other = state(index), Index(Database(str(database)))
    seen = []

    def interrupted() -> Iterator[Record]:
        yield from everything[:1]
        seen.append(state(other))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.rebuild(interrupted(), refuse)
    assert seen == [before] == [state(index)]
    assert differences(index.rebuild(everything, refuse))["adapters"] == NONE, "and nothing of it is in the way"


def test_more_records_than_are_written_at_once(index: Index, exported: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.index.rebuild._BATCH", 3)
    changes = index.rebuild([exported(f"a{n}", checkpoint=f"c{n}") for n in range(10)], refuse)
    assert changes[0].added == len(index.newest(99)) == 10


def cut(database: Path) -> None:
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])


def scribble(database: Path) -> None:
    data = bytearray(database.read_bytes())
    data[4096:] = bytes(byte ^ 0xFF for byte in data[4096:])
    database.write_bytes(data)


def replace(database: Path) -> None:
    database.write_bytes(b"not a database" * 1000)


def drop(database: Path) -> None:
    change(database, "DROP TABLE exports")


@pytest.mark.parametrize("damage", [cut, scribble, replace, drop])
def test_a_damaged_database_is_kept_and_a_new_one_made(
    damage: Callable[[Path], None], index: Index, everything: list[Record], database: Path
) -> None:
    index.add(everything)
    before, copy = state(index), database.with_name("copy.sqlite")
    change(database, f"VACUUM INTO '{copy}'")
    damage(copy)
    evidence = copy.read_bytes()[100:]  # but for what opening notes in the header
    damaged = Index(Database(str(copy)))
    with pytest.raises(IndexDamaged, match="reindex"):
        state(damaged)
    kept = damaged.set_aside_if_damaged()
    assert kept is not None
    assert Path(kept).read_bytes()[100:] == evidence
    assert damaged.is_empty()
    damaged.rebuild(everything, refuse)
    assert state(damaged) == before
    assert damaged.set_aside_if_damaged() is None


def test_what_belongs_to_a_database_goes_aside_with_it(database: Path) -> None:
    """Or SQLite would apply it to the new one."""
    copy = database.with_name("copy.sqlite")
    for end in ("-wal", "-shm", "-journal"):
        Path(f"{copy}{end}").write_bytes(end.encode())
    copy.write_bytes(b"not a database")
    kept = Database(str(copy)).set_aside()
    assert [Path(f"{kept}{end}").read_bytes() for end in ("", "-wal", "-shm", "-journal")] == [
        *(b"not a database", b"-wal", b"-shm", b"-journal")
    ]
    assert not list(copy.parent.glob("copy.sqlite")) + list(copy.parent.glob("copy.sqlite-*"))


def test_temporary_index_is_like_any_other_and_makes_no_file(
    everything: list[Record], index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TMPDIR", "SQLITE_TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path / "scratch")
    index.rebuild(everything, refuse)
    temporary, other = Index(Database("")), Index(Database(""))
    temporary.rebuild(everything, refuse)
    assert temporary.newest(9) == index.newest(9)
    assert temporary.aliases() == index.aliases()
    assert other.newest(9) == []
    assert [*(tmp_path / "scratch").iterdir()] == []
