"""Who relies on an adapter, as the index tells it."""

from __future__ import annotations

from collections.abc import Callable

from registry.core.holds import Hold, HoldKind
from registry.core.records import Record
from registry.index import Index
from tests.support.values import digest_of

Make = Callable[..., Record]


def holds(index: Index, adapter: str) -> list[Hold]:
    with index.moving() as moving:
        return moving.holds(digest_of(adapter))


def child(name: str) -> Hold:
    return Hold(HoldKind.CHILD, str(digest_of(name)))


def test_nobody_relies_on_an_adapter_that_is_only_exported(index: Index, exported: Make) -> None:
    index.add([exported("a", id="r1"), exported("b", tensors="b", checkpoint="b", id="r1")])
    assert holds(index, "a") == holds(index, "b") == holds(index, "unknown") == []


def test_aliases_that_stand_hold_what_they_name(index: Index, exported: Make, moved: Make) -> None:
    index.add([exported("a"), exported("b"), moved("prod", 1, after="a"), moved("Best", 1, after="a")])
    index.add([moved("old", 1, after="a"), moved("old", 2, before="a")])
    assert holds(index, "a") == [Hold(HoldKind.ALIAS, "Best"), Hold(HoldKind.ALIAS, "prod")]
    index.add([moved("prod", 2, before="a", after="b")])
    assert holds(index, "a") == [Hold(HoldKind.ALIAS, "Best")]
    assert holds(index, "b") == [Hold(HoldKind.ALIAS, "prod")]


def test_score_runs_hold_what_they_used_however_they_ended(index: Index, exported: Make, scored: Make) -> None:
    index.add([exported("a"), exported("b"), scored("a", at=1, accuracy=1), scored("a", at=2, status="stopped")])
    assert holds(index, "a") == [Hold(HoldKind.SCORE_RUN, "/runs/eval")] * 2
    assert holds(index, "b") == []


def test_score_runs_come_by_age(index: Index, exported: Make, scored: Make) -> None:
    index.add([exported("a"), *(scored("a", at=at, path=f"/runs/{at}", accuracy=1) for at in (3, 1, 5, 2, 4))])
    assert [hold.name for hold in holds(index, "a")] == [f"/runs/{at}" for at in range(1, 6)]


def test_what_a_run_started_from_is_held_by_what_it_exported(index: Index, exported: Make) -> None:
    index.add([exported("a"), exported("b", checkpoint="b", tensors="b", warm_start=digest_of("a").hex)])
    assert holds(index, "a") == [child("b")]
    assert holds(index, "b") == []


def test_parent_by_tensor_digest_is_held_only_while_no_other_adapter_has_these_tensors(
    index: Index, exported: Make, removed: Make
) -> None:
    tensors = digest_of("tensors").hex
    index.add([exported("a"), exported("b", checkpoint="b", tensors="b", warm_start=tensors)])
    assert holds(index, "a") == [child("b")]
    index.add([exported("twin", checkpoint="twin")])
    assert holds(index, "a") == holds(index, "twin") == []
    index.add([removed("twin")])
    assert holds(index, "a") == [child("b")]


def test_checkpoint_that_another_run_went_on_from_holds_its_adapter(index: Index, exported: Make) -> None:
    resumed = digest_of("checkpoint").hex
    index.add(
        [
            exported("a", id="r1"),
            exported("same", checkpoint="2", tensors="2", id="r1", resumed_from=resumed),
            exported("other", checkpoint="3", tensors="3", id="r2", resumed_from=resumed),
            exported("unnamed", checkpoint="4", tensors="4", id=None, resumed_from=resumed),
            exported("elsewhere", checkpoint="5", tensors="5", id="r2", resumed_from=digest_of("5").hex),
        ]
    )
    expected = [child("other"), child("unnamed")]
    assert holds(index, "a") == sorted(expected, key=lambda hold: hold.name)


def test_checkpoint_of_an_unnamed_run_is_held_by_whatever_went_on_from_it(index: Index, exported: Make) -> None:
    resumed = digest_of("checkpoint").hex
    index.add([exported("a", id=None), exported("b", checkpoint="b", tensors="b", id="r2", resumed_from=resumed)])
    assert holds(index, "a") == [child("b")]


def test_child_that_is_not_there_or_is_the_adapter_itself_holds_nothing(
    index: Index, exported: Make, removed: Make
) -> None:
    start = digest_of("a").hex
    index.add([exported("a"), exported("a", checkpoint="2", warm_start=start)])
    index.add([exported("b", checkpoint="b", tensors="b", warm_start=start), removed("b")])
    assert holds(index, "a") == []


def test_each_child_is_named_once(index: Index, exported: Make) -> None:
    start = {"warm_start": digest_of("a").hex, "resumed_from": digest_of("checkpoint").hex}
    index.add([exported("a"), *(exported("b", checkpoint=name, tensors="b", **start) for name in ("x", "y"))])
    assert holds(index, "a") == [child("b")]
