"""Aliases in the index: what the moves' records say, in whatever order they come; and RUN@ITER."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from registry.core.records import Record
from registry.core.refs import AliasName, RunIteration
from registry.index import Index
from tests.support.values import digest_of

Make = Callable[..., Record]
A, B = digest_of("a"), digest_of("b")


def standing(index: Index) -> dict[str, str]:
    return {move.name: str(move.after) for move in index.aliases()}


def test_an_alias_stands_where_its_last_move_put_it(index: Index, exported: Make, moved: Make) -> None:
    index.add([exported("a"), exported("b")])
    index.add([moved("best", 1, after="a"), moved("prod", 1, after="a")])
    assert standing(index) == {"best": str(A), "prod": str(A)}
    index.add([moved("best", 2, "a", "b")])
    assert standing(index) == {"best": str(B), "prod": str(A)}
    index.add([moved("prod", 2, "a")])
    assert standing(index) == {"best": str(B)}
    last = index.last_move(AliasName("prod"))
    assert last is not None
    assert (last.before, last.after, last.sequence, last.moved_by) == (A, None, 2, "someone@somewhere")
    assert index.last_move(AliasName("other")) is None


def test_moves_give_the_same_in_every_order_at_once_or_one_by_one(index: Index, exported: Make, moved: Make) -> None:
    index.add([exported("a"), exported("b")])
    for number, order in enumerate(itertools.permutations(range(4))):
        alias = f"x{number}"
        moves = [
            moved(alias, 1, after="a"),
            moved(alias, 2, "a", "b"),
            moved(alias, 3, "b"),
            moved(alias, 4, after="a"),
        ]
        if number % 2:
            index.add([moves[place] for place in order])
        else:
            for place in order:
                index.add([moves[place], moves[place]])
        assert [move.sequence for move in index.alias_history(AliasName(alias))] == [1, 2, 3, 4]
        assert standing(index)[alias] == str(A)


def test_two_moves_with_one_number_are_both_told_and_the_later_one_counts(
    index: Index, exported: Make, moved: Make
) -> None:
    """No index makes such, but two that were lost and found could."""
    index.add([exported("a"), exported("b")])
    later, earlier = moved("best", 1, after="b", at=9), moved("best", 1, after="a", at=2)
    index.add([later])
    index.add([earlier])
    assert [move.record for move in index.alias_history(AliasName("best"))] == [earlier.digest, later.digest]
    assert standing(index) == {"best": str(B)}


def test_names_that_differ_in_case_are_one_alias(index: Index, exported: Make, moved: Make) -> None:
    index.add([exported("a"), moved("Prod", 1, after="a"), moved("Prod", 2, "a"), moved("prod", 3, after="a")])
    assert standing(index) == {"prod": str(A)}
    assert [move.name for move in index.alias_history(AliasName("PROD"))] == ["Prod", "Prod", "prod"]


def test_an_adapter_names_the_aliases_that_stand_at_it(index: Index, exported: Make, moved: Make) -> None:
    index.add([exported("a"), exported("b")])
    index.add([moved("y", 1, after="a"), moved("X", 1, after="a"), moved("z", 1, after="a"), moved("z", 2, "a", "b")])
    assert {each.digest: each.aliases for each in index.newest(9)} == {A: ("X", "y"), B: ("z",)}


@pytest.mark.parametrize(
    ("run", "iteration", "adapters"),
    [
        ("r1", 3, ["a"]),
        ("r1", 7, ["a", "b"]),
        ("r1", None, ["a", "b"]),
        ("r2", None, ["a"]),
        ("r2", 3, []),
        ("r3", None, []),
        ("no", 3, []),
        ("no", None, []),
    ],
)
def test_a_run_and_an_iteration_give_the_adapters_exported_there(
    index: Index, exported: Make, run: str, iteration: int | None, adapters: list[str]
) -> None:
    index.add(
        [
            exported("a", id="r1", iteration=3, checkpoint="1"),
            exported("a", id="r1", iteration=7, checkpoint="2"),
            exported("a", id="r1", iteration=7, checkpoint="3"),
            exported("b", id="r1", iteration=7, checkpoint="4"),
            exported("a", id="r2", iteration=0, checkpoint="5"),
            exported("b", id="r2", iteration=None, checkpoint="6"),
            exported("b", id="r3", iteration=None, checkpoint="7"),
            exported("b", id=None, iteration=3, checkpoint="8"),
        ]
    )
    assert index.exported(RunIteration(run, iteration), 9) == sorted(map(digest_of, adapters))
    assert index.exported(RunIteration(run, iteration), 1) == sorted(map(digest_of, adapters))[:1]
