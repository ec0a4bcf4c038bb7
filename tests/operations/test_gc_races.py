"""GC and whoever comes between two of its steps, or it between two of theirs: each in turn, at every time that one of
them is about to take the index's lock."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from registry import Digest, NotFound, Registry
from registry.core import records
from registry.index import Database
from registry.operations.gone import standing
from registry.store import LocalStore
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.scoring import result_of, write_score_run

Act = Callable[[Registry], Any]


class Overtaken(Database):
    """A database whose write lock another gets before, when it is about to be taken for the `number`-th time."""

    def __init__(self, path: str, number: int, other: Callable[[], None]) -> None:
        super().__init__(path)
        self._left, self._other = number, other

    @property
    def was_overtaken(self) -> bool:
        return self._left <= 0

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        self._left -= 1
        if self._left == 0:
            self._other()
        with super().writing() as connection:
            yield connection


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_checkpoint(root, contents(lora_state(seed=n), iteration=n), iteration=n) for n in (1, 2)]


@pytest.fixture(scope="module")
def shelf(checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Digest]]:
    home = tmp_path_factory.mktemp("shelf") / "home"
    return home, [Registry(home).add(checkpoint).digest for checkpoint in checkpoints]


def quiet(home: Path) -> Registry:
    return Registry(home, note=lambda _: None)


def at_every_lock(home: Path, copies: Path, act: Act, other: Act) -> Iterator[tuple[Registry, Any, Any]]:
    """Do `act` with `other` before each time that it takes the lock: the registry, and what the two returned."""
    for number in count(1):
        copy = Path(shutil.copytree(home, copies / str(number)))
        told: list[Any] = []
        registry = quiet(copy)
        database = Overtaken(str(copy / "index.sqlite"), number, lambda: told.append(other(quiet(copy))))  # noqa: B023
        registry._opened.database = database
        done = act(registry)
        if not database.was_overtaken:
            assert number > 1, "the lock was taken at least once"
            return
        yield quiet(copy), done, told[0]


def stored(registry: Registry) -> set[Digest]:
    return set(LocalStore(registry.home).digests())


def require_whole(registry: Registry, adapters: list[Digest]) -> None:
    """Every adapter is stored and listed, or removed with a record that says so."""
    store = LocalStore(registry.home)
    assert {each.digest for each in registry.newest(99)} == stored(registry)
    for digest in adapters:
        assert store.contains(digest) == (standing(store, digest) is None)
    assert store.unsettled() == []
    assert registry.verify().findings == ()


def name_it(registry: Registry, digest: Digest, _root: Path) -> None:
    registry.set_alias(f"as-{digest.short}", digest.hex)


def score_it(registry: Registry, digest: Digest, root: Path) -> None:
    registry.add_score(write_score_run(root / digest.short, result_of(digest)))


def train_from_it(registry: Registry, digest: Digest, root: Path) -> None:
    config = {"run_id": "next", "model": {"base": "org/base", "adapter": str(digest)}}
    seed = int(digest.hex[:4], 16)
    registry.add(
        write_checkpoint(root / digest.short, contents(lora_state(seed=seed)), config=config), parent=digest.hex
    )


@pytest.mark.parametrize("rely", [name_it, score_it, train_from_it])
def test_what_somebody_relies_on_between_choosing_and_removing_stays(
    rely: Callable[[Registry, Digest, Path], None], shelf: tuple[Path, list[Digest]], tmp_path: Path
) -> None:
    home, adapters = shelf
    steps = 0

    def rely_on_all(registry: Registry) -> set[Digest]:
        there = set()
        for digest in adapters:
            with suppress(NotFound):
                rely(registry, registry.resolve(digest.hex), tmp_path / f"at-{steps}")
                there.add(digest)
        return there

    for registry, done, kept in at_every_lock(home, tmp_path, lambda each: each.gc(keep_last=0), rely_on_all):
        steps += 1
        assert (len(kept), done.failed) == (3 - steps, ()), "of the two, one is removed at a time"
        assert {each.digest for each in done.gone} == {*adapters} - kept
        assert kept <= stored(registry)
        require_whole(registry, adapters)
    assert steps == 2


def test_what_is_added_again_between_two_removals_is_there_or_removed_with_its_record(
    checkpoints: list[Path], shelf: tuple[Path, list[Digest]], tmp_path: Path
) -> None:
    home, adapters = shelf
    found = []
    for registry, done, _ in at_every_lock(
        home, tmp_path, lambda each: each.gc(keep_last=0), lambda each: [each.add(path) for path in checkpoints]
    ):
        assert {each.digest for each in done.gone} == {*adapters}
        require_whole(registry, adapters)
        found.append(stored(registry))
    assert found == [set(), {done.gone[0].digest}], "what came back after it was removed stays"


@pytest.mark.parametrize(("removed_before", "added_between"), [(False, False), (True, False), (True, True)])
def test_adapter_that_gc_removes_while_it_is_added_is_there_or_removed_with_its_record(
    removed_before: bool, added_between: bool, checkpoints: list[Path], shelf: tuple[Path, list[Digest]], tmp_path: Path
) -> None:
    home, (digest, other) = Path(shutil.copytree(shelf[0], tmp_path / "home")), shelf[1]
    if removed_before:
        quiet(home).remove(digest.hex)
    found = []

    def collect(registry: Registry) -> Any:
        if added_between:
            registry.add(checkpoints[0])
        return registry.gc(keep_last=0)

    for registry, added, collected in at_every_lock(
        home, tmp_path / "copies", lambda each: each.add(checkpoints[0]), collect
    ):
        assert (added.digest, collected.failed) == (digest, ())
        assert other in {each.digest for each in collected.gone}
        require_whole(registry, [digest, other])
        found.append(digest in stored(registry))
        removals = LocalStore(registry.home).records(digest, records.REMOVAL)
        assert len(removals) == removed_before + (digest in {each.digest for each in collected.gone})
    assert found[0], "the adder looked again once it had the lock"
    assert not found[-1], "it was removed before the index had its row, and the row came all the same"
