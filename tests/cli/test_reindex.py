"""`aorlta-reg reindex`, and what commands say that find the index missing or damaged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Shelf
from tests.support.answers import lose_index
from tests.support.process import CommandLine
from tests.support.trees import flip

SOUND = {"rows": 0, "added": 0, "removed": 0, "changed": 0}


@pytest.fixture
def mine(shelf: Shelf, tmp_path: Path) -> Shelf:
    """A copy of the shelf, to be damaged."""
    shutil.copytree(shelf.cli.home, tmp_path / "mine")
    return Shelf(CommandLine(tmp_path / "mine"), shelf.checkpoint, shelf.hex)


def test_next_command_says_that_the_index_was_lost_and_answers_as_before(mine: Shelf) -> None:
    before = mine.cli.ok("list", "--json")
    lose_index(mine.cli.home)
    done = mine.cli("list")
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    assert done.err == "the index was missing: made anew from 1 records\n"
    assert mine.cli("list").err == ""
    assert mine.cli.ok("list", "--json") == before


def test_reindex_tells_what_differed_and_how_fast_it_was(mine: Shelf) -> None:
    lose_index(mine.cli.home)
    done = mine.cli("reindex")
    assert [line.split() for line in done.out.splitlines()] == [
        ["ROWS", "NOW", "ADDED", "REMOVED", "CHANGED"],
        ["adapters", "1", "1", "0", "0"],
        ["exports", "1", "1", "0", "0"],
        ["comparisons", "0", "0", "0", "0"],
        ["alias", "moves", "0", "0", "0", "0"],
        ["score", "runs", "0", "0", "0", "0"],
        ["scores", "0", "0", "0", "0"],
        ["removals", "0", "0", "0", "0"],
    ]
    assert re.fullmatch(r"1 records in \d+\.\d\d s: \d+ records/s\n", done.err)
    document = json.loads(mine.cli.ok("reindex", "--json"))
    assert document.pop("seconds") > 0
    assert document.pop("records_per_second") > 0
    assert document == {
        "records": {"export": 1},
        "changes": {
            "adapters": {**SOUND, "rows": 1},
            "exports": {**SOUND, "rows": 1},
            "comparisons": SOUND,
            "alias_moves": SOUND,
            "score_runs": SOUND,
            "scores": SOUND,
            "removals": SOUND,
        },
        "damaged": [],
        "set_aside": None,
    }


def test_damaged_record_is_named_and_exits_5(mine: Shelf) -> None:
    (record,) = mine.cli.home.glob("records/*/*/*.json")
    flip(record)
    done = mine.cli("reindex")
    assert done.code == 5
    assert str(record) in done.err
    assert done.out.splitlines()[1].split() == ["adapters", "0", "0", "1", "0"]
    done = mine.cli("reindex", "--json")
    assert done.code == 5
    (error,) = json.loads(done.out)["damaged"]
    assert (error["kind"], error["path"]) == ("IntegrityError", str(record))


def test_damaged_index_is_named_with_what_to_do_which_mends_it(mine: Shelf) -> None:
    before = mine.cli.ok("list", "--json")
    lose_index(mine.cli.home)
    (mine.cli.home / "index.sqlite").write_bytes(b"not a database" * 1000)
    done = mine.cli("list")
    assert (done.code, done.out) == (7, "")
    assert "aorlta-reg reindex" in done.err
    document = json.loads(mine.cli.ok("reindex", "--json"))
    assert Path(document["set_aside"]).read_bytes() == b"not a database" * 1000
    assert mine.cli.ok("list", "--json") == before


def test_reindex_of_nothing_is_empty(cli: CommandLine) -> None:
    assert json.loads(cli.ok("reindex", "--json"))["records"] == {}
