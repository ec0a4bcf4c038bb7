"""Records of every kind, and the index lost in every way: whatever command comes next says so or mends it, `reindex`
restores it, and then every question has the answer it had before."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine

from registry import Digest, Registry
from registry.core import records
from registry.core.errors import IndexMissing
from registry.core.records import Record
from registry.index.migrate import configuration
from registry.index.schema import HEAD
from registry.operations import mend
from registry.store import LocalStore
from tests.support.answers import answers, lose_index
from tests.support.process import CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.values import comparison

LOST = "made anew from"
REINDEX = "aorlta-reg reindex"


def score(subject: Digest, *, at: int, status: str = "completed", **metrics: float) -> Record:
    facts = {
        "score_run": {"name": f"eval {at}", "path": f"/evals/{at}", "result": {"sha256": f"{at:064}"}, "config": None},
        "status": status,
        "stop": {"reason": "out of time"} if status == "stopped" else None,
        "scores": metrics,
        "scored_at": f"2026-04-{at:02}T00:00:00.000000Z",
        "scored_by": "someone@somewhere",
    }
    return records.make(records.SCORE, subject, facts)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A home with records of every kind, and the checkpoints it was made of."""
    root = tmp_path_factory.mktemp("filled")
    registry = Registry(root / "home")
    store = LocalStore(registry.home)

    def checkpoint(run: str, iteration: int, seed: int, **config: object) -> Path:
        saved = contents(lora_state(seed=seed), iteration=iteration) | {"step": iteration}
        stated = {"run_id": run, "lora": {"r": 4, "alpha": 8}, **config}
        return write_checkpoint(root / run, saved, iteration=iteration, config=stated)

    first = checkpoint("r1", 1, 0, model={"base": "org/base", "revision": "main"})
    start = registry.add(first).digest
    begun = {"base": "org/base", "adapter": str(start)}
    made = [
        first,
        *(checkpoint("r1", n, n) for n in (2, 3)),
        *(checkpoint("r2", n, n + 9, model=begun) for n in (1, 2)),
    ]
    one, two, three, four, five = (registry.add(each).digest for each in made)
    store.put_record(comparison(one, at=1, vllm="identical", sglang="partial"))
    store.put_record(comparison(two, at=2, vllm="vacuous"))
    for each in (
        score(one, at=1, accuracy=0.5, loss=2.0),
        score(one, at=2, accuracy=0.75),
        score(four, at=3, status="stopped", accuracy=0.1),
    ):
        store.put_record(each)
    registry.set_alias("best", one.hex)
    registry.set_alias("best", four.hex)
    registry.set_alias("lost", three.hex)
    registry.set_alias("old", two.hex)
    registry.remove_alias("old")
    registry.remove(two.hex, reason="not needed")
    registry.remove(three.hex, force=True)
    registry.remove(five.hex)
    registry.add(made[4])
    registry.remove(one.hex, force=True, reason="again")
    registry.add(first)
    assert store.unsettled() == []
    return root / "home", made


@pytest.fixture
def rich(filled: tuple[Path, list[Path]], tmp_path: Path) -> Path:
    shutil.copytree(filled[0], tmp_path / "rich")
    return tmp_path / "rich"


@pytest.fixture
def before(rich: Path) -> dict[str, object]:
    """What everything answers, of which the tests below would be empty if a kind were missing."""
    found = answers(rich)
    shown = found["show"].values()
    assert sorted(len(each.exports) for each in shown if not isinstance(each, str)) == [1, 2, 3]
    assert sum("removed at" in each for each in shown if isinstance(each, str)) == 2
    assert {verdict for each in found["list"] for verdict in [each.verdict]} == {"partial", None}
    assert [each.scores for each in found["list"] if each.scores] == [{"accuracy": 0.75, "loss": 2.0}]
    assert any(export.warm_start for each in found["list"] for export in each.exports)
    assert "removed at" in found["named"]["lost"]
    assert found["history"].keys() == {"best", "lost", "old"}
    return found


def delete(home: Path) -> None:
    lose_index(home)


def truncate(home: Path) -> None:
    """Its log stays, as after a power cut on a file system that keeps no promises."""
    with sqlite3.connect(home / "index.sqlite") as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
        log = (home / "index.sqlite-wal").read_bytes()
    connection.close()
    assert log
    lose_index(home)
    (home / "index.sqlite-wal").write_bytes(log)
    (home / "index.sqlite").write_bytes(b"")


def garbage(home: Path) -> None:
    lose_index(home)
    (home / "index.sqlite").write_bytes(b"not a database" * 1000)


def cut(home: Path) -> None:
    with sqlite3.connect(home / "index.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = (home / "index.sqlite").read_bytes()
    lose_index(home)
    (home / "index.sqlite").write_bytes(data[: len(data) // 2])


def older(revision: str) -> Callable[[Path], None]:
    """An index that an older program left: its schema, with a row."""

    def lose(home: Path) -> None:
        lose_index(home)
        engine = create_engine(f"sqlite:///{home / 'index.sqlite'}")
        with engine.begin() as connection:
            command.upgrade(configuration(connection), revision)
        engine.dispose()
        with sqlite3.connect(home / "index.sqlite") as connection:
            connection.execute(
                "INSERT INTO adapters (id, digest, tensor_digest, bytes, modules, r, lora_alpha, use_rslora,"
                f" first_exported_at) VALUES (1, '{'a' * 64}', '{'b' * 64}', 9, 1, 4, 8, 0, '2026')"
            )
            connection.execute(f"INSERT INTO checkpoints VALUES (1, '{'c' * 64}', 9)")
            connection.execute(
                "INSERT INTO exports (id, record, adapter_id, checkpoint_id, path, reader, exported_at)"
                f" VALUES (1, '{'d' * 64}', 1, 1, '/x', 'aorlta', '2026')"
            )
        connection.close()

    return lose


WAYS = {
    "deleted": (delete, f"the index was missing: {LOST}"),
    "truncated": (truncate, f"the index was missing: {LOST}"),
    "of revision 0001": (older("0001"), f"the index was made by an older version: {LOST}"),
    "of revision 0002": (older("0002"), f"the index was made by an older version: {LOST}"),
    "of revision 0003": (older("0003"), f"the index was made by an older version: {LOST}"),
    "garbage": (garbage, None),
    "cut in half": (cut, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_next_command_says_that_the_index_was_lost_or_mends_it_and_says_so(
    way: str, rich: Path, before: dict[str, object]
) -> None:
    lose, note = WAYS[way]
    lose(rich)
    cli = CommandLine(rich)
    done = cli("list")
    if note is None:
        assert (done.code, done.out) == (7, "")
        assert REINDEX in done.err
        assert done.err.count("\n") == 1
    else:
        assert (done.code, done.err) == (0, f"{note} {counted(rich)} records\n")
        assert answers(rich) == before
        assert cli("list").err == ""
    assert cli("reindex").code == 0
    assert answers(rich) == before


@pytest.mark.parametrize("way", WAYS)
def test_reindex_restores_what_was_lost_in_any_way(way: str, rich: Path, before: dict[str, object]) -> None:
    WAYS[way][0](rich)
    document = json.loads(CommandLine(rich).ok("reindex", "--json"))
    assert document["damaged"] == []
    assert sum(document["records"].values()) == counted(rich)
    assert document["records"].keys() == {"export", "comparison", "alias", "score", "removal"}
    assert answers(rich) == before
    again = json.loads(CommandLine(rich).ok("reindex", "--json"))["changes"]
    assert all(change["added"] == change["removed"] == change["changed"] == 0 for change in again.values()), again


def test_old_copy_that_was_restored_is_made_right_by_reindex(
    rich: Path, filled: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    registry = Registry(rich)
    shutil.copyfile(rich / "index.sqlite", tmp_path / "old")
    registry.remove(registry.resolve("r2@2").hex)
    registry.set_alias("best", "r1@1")
    registry.add(filled[1][1])
    before = answers(rich)
    lose_index(rich)
    shutil.copyfile(tmp_path / "old", rich / "index.sqlite")
    assert answers(rich) != before
    assert Registry(rich).reindex().damaged == ()
    assert answers(rich) == before


def test_index_that_was_cut_off_under_another_process_is_made_anew_and_said(
    rich: Path, before: dict[str, object]
) -> None:
    with sqlite3.connect(rich / "index.sqlite") as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
        (rich / "index.sqlite").write_bytes(b"")
        done = CommandLine(rich)("list")
        assert done.code == 0
        assert "the index was missing: made anew" in done.err
    connection.close()
    assert answers(rich) == before


def counted(home: Path) -> int:
    return len(list(home.glob("records/*/*/*.json")))


@pytest.fixture
def many(rich: Path) -> Path:
    """With more records than are read without asking. They are written as they would lie there, and not one by one."""
    subject = Registry(rich).resolve("r1@1")
    directory = rich / "records" / subject.hex[:2] / subject.hex
    for number in range(mend.FEW):
        facts = comparison(subject, at=1, vllm="identical").predicate | {"notes": [str(number)]}
        record = records.make(records.COMPARISON, subject, facts)
        (directory / record.name).write_bytes(record.data)
    assert counted(rich) > mend.FEW
    Registry(rich).reindex()
    return rich


@pytest.mark.parametrize("way", ["deleted", "truncated", "of revision 0003"])
def test_large_index_that_was_lost_exits_7_and_names_reindex_while_digests_and_add_work(
    way: str, many: Path, filled: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    cli, before = CommandLine(many), answers(many)
    digest = next(iter(before["list"])).digest.hex
    WAYS[way][0](many)
    done = cli("list")
    assert (done.code, done.out, done.err.count("\n")) == (7, "", 1), done
    assert REINDEX in done.err
    lost = Registry(many)
    for ask in (lost.show, lost.remove, partial(lost.set_alias, "x")):
        with pytest.raises(IndexMissing, match=REINDEX):
            ask(digest)
    assert cli.ok("path", digest)
    assert lost.get(digest, tmp_path / "got")
    done = cli("add", filled[1][1])
    assert done.code == 0
    assert REINDEX in done.err
    added = done.out.strip()
    assert lost.path(added)
    assert cli("list").code == 7
    assert cli("reindex").code == 0
    after = answers(many)["list"]
    assert [each for each in after if str(each.digest) != added] == before["list"]
    assert len(after) == len(before["list"]) + 1
    assert LocalStore(str(many)).unsettled() == []


def marks(home: Path) -> list[tuple[str]]:
    with sqlite3.connect(home / "index.sqlite") as connection:
        found = connection.execute("SELECT name FROM marks").fetchall()
    connection.close()
    return found


@pytest.mark.parametrize("revision", ["0001", "0003"])
def test_db_upgrade_says_that_rows_of_an_older_index_lack_something_until_they_are_made_anew(
    revision: str, rich: Path, before: dict[str, object]
) -> None:
    older(revision)(rich)
    done = CommandLine(rich)("db", "upgrade")
    assert (done.code, done.out) == (0, f"index at {HEAD} (was {revision})\n")
    assert REINDEX in done.err
    assert marks(rich) == [("stale",)]
    notes: list[str] = []
    assert Registry(rich, note=notes.append).newest(99) == before["list"]
    assert notes == [f"the index was made by an older version: {LOST} {counted(rich)} records"]
    assert marks(rich) == []
    assert CommandLine(rich)("db", "upgrade").err == ""


def test_older_index_without_rows_is_not_stale(home: Path) -> None:
    home.mkdir()
    engine = create_engine(f"sqlite:///{home / 'index.sqlite'}")
    with engine.begin() as connection:
        command.upgrade(configuration(connection), "0003")
    engine.dispose()
    assert CommandLine(home)("db", "upgrade").err == ""
    assert marks(home) == []


def test_large_index_of_an_older_version_keeps_its_mark_until_reindex(
    rich: Path, before: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    older("0003")(rich)
    monkeypatch.setattr(mend, "FEW", 5)
    with pytest.raises(IndexMissing, match=REINDEX):
        Registry(rich).newest(9)
    assert marks(rich) == [("stale",)]
    Registry(rich).reindex()
    assert marks(rich) == []
    assert answers(rich) == before


def test_two_processes_that_find_the_index_lost_both_answer(rich: Path, before: dict[str, object]) -> None:
    lose_index(rich)
    cli = CommandLine(rich)
    program = ["bash", "-c", f"for n in 1 2 3 4; do {sys.executable} -m registry.cli list --json & done; wait"]
    done = subprocess.run(program, capture_output=True, text=True, env=cli.environment(), check=True)
    assert done.stderr == ""
    assert done.stdout.count('"first_exported_at"') == 4 * len(before["list"])
    assert answers(rich) == before
