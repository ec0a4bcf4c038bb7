"""Gone: which word on an adapter is the last one, and what is said of one that was removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from registry import Digest
from registry.core import records
from registry.core.records import Record
from registry.operations import gone
from registry.store import LocalStore

A, B = Digest("a" * 64), Digest("b" * 64)


@pytest.fixture
def store(home: Path) -> LocalStore:
    return LocalStore(str(home))


def at(day: int) -> str:
    return f"2026-03-{day:02}T00:00:00.000000Z"


def exported(day: object, **facts: Any) -> Record:
    return records.make(records.EXPORT, A, {"exported_at": at(day) if isinstance(day, int) else day, **facts})


def removed(day: object, **facts: Any) -> Record:
    when = at(day) if isinstance(day, int) else day
    return records.make(records.REMOVAL, A, {"removed_at": when, "removed_by": "me@here", "reason": None, **facts})


def keep(store: LocalStore, *known: Record) -> None:
    for record in known:
        store.put_record(record)
        store.settle(record)


def test_removal_stands_until_an_export_that_is_later(store: LocalStore) -> None:
    keep(store, removed(2))
    assert gone.standing(store, B) is None
    for known, stands in (
        (exported(1), True),
        (exported(2), False),
        (removed(4), True),
        (exported(3), True),
        (exported(5), False),
        (removed(3), False),
    ):
        keep(store, known)
        assert (gone.standing(store, A) is not None) == stands


def test_removals_and_exports_come_oldest_first_whatever_their_names(store: LocalStore) -> None:
    for day in (5, 1, 4, 2, 3):
        keep(store, removed(day), exported(day))
    days = [at(day) for day in range(1, 6)]
    assert [each.predicate["removed_at"] for each in gone.removals(store, A)] == days
    assert [each.predicate["exported_at"] for each in gone.exports(store, A)] == days


def test_what_is_announced_counts_once_and_what_tells_no_time_does_not(store: LocalStore) -> None:
    store.put_record(removed(1))  # announced still
    store.announce(removed(2))
    keep(store, *(removed(day) for day in ("once", None, 7.5, ["2999"])))
    assert [each.predicate["removed_at"] for each in gone.removals(store, A)] == [at(1), at(2)]


@pytest.mark.parametrize(
    ("facts", "hint"),
    [
        ({"checkpoint": {"path": "/runs/1"}}, "Add its checkpoint again: /runs/2"),
        ({"checkpoint": "/runs/1"}, "Add its checkpoint again: /runs/2"),
        (None, None),
    ],
)
def test_of_one_that_was_removed_it_is_said_when_by_whom_why_and_which_checkpoint_was_its_last(
    facts: dict[str, Any] | None, hint: str | None, store: LocalStore
) -> None:
    keep(store, removed(9, reason="y" * 201))
    if facts is not None:
        keep(store, exported(2, checkpoint={"path": "/runs/2"}), exported(1, **facts))
    error = gone.not_found(store, A)
    assert error.problem == f"the adapter was removed at {at(9)} by me@here: {'y' * 200}"
    assert (error.key, error.hint) == (str(A), hint)


def test_of_one_that_was_never_there_nothing_is_said_but_that(store: LocalStore) -> None:
    keep(store, exported(1))
    error = gone.not_found(store, A)
    assert (error.problem, error.key, error.hint) == ("no such adapter in the store", str(A), None)
