"""Aliases: compared and set by one at a time, every move kept, and a killed mover's move finished or never begun."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from registry import Ambiguous, Conflict, Digest, NotFound, Refused, Registry
from registry.core import records
from registry.core.alias import AliasMove
from registry.core.records import Record
from registry.core.refs import AliasName
from registry.operations.alias import move
from registry.store import LocalStore
from tests.support.process import COMMAND, CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.strace import killer, needs_strace

MANY = 16


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Digest]]:
    """A home with three adapters of the run `r`: iterations 1, 2 and, from two checkpoints, 2 again."""
    root = tmp_path_factory.mktemp("shelf")
    registry = Registry(root / "home")
    digests = []
    for number, iteration in enumerate((1, 2, 2)):
        saved = contents(lora_state(seed=number), iteration=iteration)
        checkpoint = write_checkpoint(root / f"copy{number}" / "r", saved, iteration=iteration, config={"run_id": "r"})
        digests.append(registry.add(checkpoint).digest)
    return root / "home", digests


def path_taken(moves: list[AliasMove]) -> list[tuple[int, Digest | None, Digest | None]]:
    return [(move.sequence, move.before, move.after) for move in moves]


def moves_in_store(registry: Registry) -> list[Record]:
    store = LocalStore(registry.home)
    return [each for subject in store.subjects() for each in store.records(subject) if each.kind == records.ALIAS]


def test_every_move_is_told_and_kept_as_a_record(registry: Registry, adapters: list[Digest]) -> None:
    one, two, _ = adapters
    first = registry.set_alias("prod", one.hex)
    assert (first.changed, first.move.before, first.move.after) == (True, None, one)
    registry.set_alias("prod", two.hex, expect=one.hex[:10])
    registry.remove_alias("prod", expect="prod")
    registry.set_alias("prod", one.hex, expect="none")
    moves = registry.alias_history("prod")
    assert path_taken(moves) == [(1, None, one), (2, one, two), (3, two, None), (4, None, one)]
    assert [move.moved_at for move in moves] == sorted(move.moved_at for move in moves)
    assert all("@" in move.moved_by for move in moves)
    kept = {record.digest: record for record in moves_in_store(registry)}
    assert kept.keys() == {move.record for move in moves}
    assert kept[moves[1].record].subject == two
    assert kept[moves[1].record].predicate == {
        "format": 1,
        "alias": "prod",
        "sequence": 2,
        "from": one.hex,
        "to": two.hex,
        "moved_at": moves[1].moved_at,
        "moved_by": moves[1].moved_by,
    }
    assert kept[moves[2].record].subject == two, "a removal is about the adapter that lost the name"


def test_setting_what_is_set_moves_nothing(registry: Registry, adapters: list[Digest]) -> None:
    first = registry.set_alias("prod", adapters[0].hex)
    again = registry.set_alias("prod", adapters[0].hex, expect=adapters[0].hex)
    assert (again.changed, again.move) == (False, first.move)
    assert len(registry.alias_history("prod")) == 1


@pytest.mark.parametrize("expect", ["none", "1"])
def test_alias_that_does_not_name_what_was_expected_stays_and_both_are_named(
    expect: str, registry: Registry, adapters: list[Digest]
) -> None:
    one, two, three = adapters
    registry.set_alias("prod", one.hex)
    expected = expect if expect == "none" else str(two)
    for attempt in (
        lambda: registry.set_alias("prod", three.hex, expect=expected),
        lambda: registry.set_alias("prod", one.hex, expect=expected),
        lambda: registry.remove_alias("prod", expect=expected),
    ):
        with pytest.raises(Conflict) as caught:
            attempt()
        assert str(one) in str(caught.value)
        assert expected in str(caught.value)
    assert registry.resolve("prod") == one
    assert len(moves_in_store(registry)) == 1


def test_expected_adapter_of_an_alias_that_there_is_not(registry: Registry, adapters: list[Digest]) -> None:
    with pytest.raises(Conflict, match=r"found none"):
        registry.set_alias("prod", adapters[0].hex, expect=adapters[1].hex)
    with pytest.raises(NotFound, match="prod"):
        registry.remove_alias("prod", expect="none")
    with pytest.raises(NotFound, match="prod"):
        registry.remove_alias("prod")
    with pytest.raises(NotFound, match="prod"):
        registry.alias_history("prod")
    assert moves_in_store(registry) == []


def test_names_that_differ_in_case_only_are_never_two_aliases(registry: Registry, adapters: list[Digest]) -> None:
    registry.set_alias("Run", adapters[0].hex)
    with pytest.raises(Refused, match=r"run.*case.*Run"):
        registry.set_alias("run", adapters[1].hex)
    with pytest.raises(NotFound, match=r"run: no alias.*There is Run"):
        registry.resolve("run")
    with pytest.raises(Refused):
        registry.remove_alias("run")
    registry.remove_alias("Run")
    registry.set_alias("run", adapters[1].hex)
    assert registry.resolve("run") == adapters[1]
    assert [move.name for move in registry.alias_history("RUN")] == ["Run", "Run", "run"]


def test_refused_name_or_unknown_adapter_moves_nothing(registry: Registry, adapters: list[Digest]) -> None:
    with pytest.raises(Refused, match="start of a digest"):
        registry.set_alias("cafe", adapters[0].hex)
    with pytest.raises(NotFound):
        registry.set_alias("prod", "f" * 64)
    with pytest.raises(NotFound):
        registry.set_alias("prod", adapters[0].hex, expect="stage")
    assert moves_in_store(registry) == []


def test_alias_and_run_are_references_everywhere(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    registry.set_alias("prod", "r@1")
    assert registry.resolve("prod") == registry.resolve(" r@1 ") == adapters[0]
    assert registry.show("prod").aliases == ("prod",)
    assert registry.path("r@1") == registry.path(adapters[0].hex)
    assert Path(registry.get("prod", tmp_path / "got")).is_dir()
    for several in ("r@2", "r@latest"):
        with pytest.raises(Ambiguous) as caught:
            registry.resolve(several)
        assert set(caught.value.candidates) == {digest.short for digest in adapters[1:]}
    for nothing in ("r@3", "s@1", "s@latest"):
        with pytest.raises(NotFound, match=nothing):
            registry.resolve(nothing)


def test_adding_with_an_alias_moves_it(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    registry.set_alias("prod", adapters[0].hex)
    checkpoint = write_checkpoint(tmp_path / "new", contents(lora_state(seed=9)))
    with pytest.raises(Refused, match="start of a digest"):
        registry.add(checkpoint, alias="beef")
    assert len(registry.newest(9)) == 3, "refused before anything was done"
    added = registry.add(checkpoint, alias="prod")
    assert registry.resolve("prod") == added.digest
    registry.add(checkpoint, alias="prod")
    assert len(registry.alias_history("prod")) == 2


def start(registry: Registry, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=CommandLine(Path(registry.home)).environment(),
    )


def test_sixteen_processes_that_expect_the_same_move_it_once(registry: Registry, adapters: list[Digest]) -> None:
    processes = [
        start(registry, "alias", "set", "prod", adapters[number % 3].hex, "--expect", "none", "--json")
        for number in range(MANY)
    ]
    results = [(process.communicate(), process.returncode) for process in processes]
    won = [json.loads(out) for (out, _), code in results if code == 0]
    changed = [document for document in won if document["changed"]]
    assert len(changed) == 1
    assert len(won) == 1, "who finds another's move does not find none"
    lost = [json.loads(err)["error"] for (_, err), code in results if code != 0]
    assert {code for _, code in results} == {0, 6}
    assert {(error["kind"], error["found"], error["expected"]) for error in lost} == {
        ("Conflict", changed[0]["digest"], "none")
    }
    assert len(registry.alias_history("prod")) == 1


def test_sixteen_processes_that_expect_nothing_leave_one_unbroken_history(
    registry: Registry, adapters: list[Digest]
) -> None:
    processes = [start(registry, "alias", "set", "prod", adapters[number % 3].hex, "--json") for number in range(MANY)]
    results = [(process.communicate(), process.returncode) for process in processes]
    assert [code for _, code in results] == [0] * MANY, results
    told = sorted(
        (document["sequence"], document["previous"], document["digest"])
        for document in (json.loads(out) for (out, _), _ in results)
        if document["changed"]
    )
    moves = registry.alias_history("prod")
    assert told == [(move.sequence, move.before and str(move.before), str(move.after)) for move in moves]
    assert [move.sequence for move in moves] == list(range(1, len(moves) + 1))
    assert [move.before for move in moves] == [None, *(move.after for move in moves[:-1])]
    assert {each.digest for each in moves_in_store(registry)} == {move.record for move in moves}
    assert LocalStore(registry.home).unsettled() == []


@needs_strace
@pytest.mark.parametrize("call", ["rename", "unlink", "fdatasync", "pwrite64"])
def test_mover_killed_at_any_step_has_moved_it_or_not_and_the_next_finds_which(
    call: str, registry: Registry, adapters: list[Digest]
) -> None:
    one, two, three = (digest.hex for digest in adapters)
    registry.set_alias("prod", one)
    with killer(call) as run:
        number, code = 0, -9
        while code:
            number += 1
            code = run(number, "alias", "set", "prod", two, "--home", registry.home)
            assert code in (0, -9)
            fresh = Registry(registry.home)
            assert fresh.resolve("prod").hex in (one, two)
            moves = fresh.alias_history("prod")
            assert [move.sequence for move in moves] == list(range(1, len(moves) + 1))
            assert [move.before for move in moves] == [None, *(move.after for move in moves[:-1])]
            assert {each.digest for each in moves_in_store(fresh)} == {move.record for move in moves}
            fresh.set_alias("prod", one)
    assert number > 1, f"no {call} was made"
    assert registry.set_alias("prod", three).move.sequence == len(registry.alias_history("prod"))


def test_move_of_one_killed_before_the_index_knew_is_followed_by_the_next_number(
    registry: Registry, adapters: list[Digest]
) -> None:
    """The mover that follows looks while it holds the lock: nobody has mended in between."""
    one, two, three = adapters
    registry.set_alias("prod", one.hex)
    left = records.make(
        records.ALIAS,
        two,
        {
            "format": 1,
            "alias": "prod",
            "sequence": 2,
            "from": one.hex,
            "to": two.hex,
            "moved_at": "2999-01-01T00:00:00.000000Z",
            "moved_by": "dead@host",
        },
    )
    store = LocalStore(registry.home)
    index = registry._opened.mended()
    store.announce(left)
    made = move(store, index, AliasName("prod"), three, now="2999-01-01T00:00:01.000000Z", who="next@host")
    assert (made.move.sequence, made.move.before) == (3, two)
    assert [each.record for each in registry.alias_history("prod")][1:] == [left.digest, made.move.record]
    assert store.unsettled() == []
