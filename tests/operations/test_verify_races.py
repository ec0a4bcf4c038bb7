"""Verify and whoever writes meanwhile: each in turn, before every single look that it takes into the store. What is
sound all the time is never a finding."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from registry import Digest, Registry
from registry.core import records
from registry.core.records import Record
from registry.operations.verify import verify
from registry.store import LocalStore, Refused
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import flip

NOW = "2999-01-01T00:00:00.000000Z"


class Overtaken(LocalStore):
    """A store that another changes before the `number`-th look into it."""

    def __init__(self, home: Path, number: int, other: Callable[[], object]) -> None:
        super().__init__(str(home))
        self._left, self._other = number, other

    @property
    def was_overtaken(self) -> bool:
        return self._left <= 0

    def _look(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._other()

    def contains(self, digest: Digest) -> bool:
        self._look()
        return super().contains(digest)

    def digests(self) -> Iterator[Digest]:
        self._look()
        return super().digests()

    def subjects(self) -> Iterator[Digest]:
        self._look()
        return super().subjects()

    def names(self, digest: Digest) -> list[str]:
        self._look()
        return super().names(digest)

    def records(self, subject: Digest, kind: str | None = None, refused: Refused | None = None) -> list[Record]:
        self._look()
        return super().records(subject, kind, refused)

    def unsettled(self, refused: Refused | None = None) -> list[Record]:
        self._look()
        return super().unsettled(refused)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of the same adapter."""
    root = tmp_path_factory.mktemp("runs")
    return [write_checkpoint(root / run, contents(lora_state())) for run in ("one", "two")]


@pytest.fixture(scope="module")
def shelf(checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Digest]]:
    home = tmp_path_factory.mktemp("shelf") / "home"
    return home, [Registry(home).add(checkpoints[0]).digest]


def quiet(home: Path) -> Registry:
    return Registry(home, note=lambda _: None)


def remove(home: Path, checkpoints: list[Path]) -> None:
    assert checkpoints
    quiet(home).remove("one@latest")


def add_again(home: Path, checkpoints: list[Path]) -> None:
    quiet(home).add(checkpoints[0])


def add_other(home: Path, checkpoints: list[Path]) -> None:
    quiet(home).add(checkpoints[1])


def announce_export(home: Path, checkpoints: list[Path]) -> None:
    """As a writer does that is killed between publishing and recording."""
    assert checkpoints
    store = LocalStore(str(home))
    (record,) = store.records(next(store.digests()), records.EXPORT)
    store.announce(record)
    assert record.path is not None
    Path(record.path).unlink()


def finish(home: Path, checkpoints: list[Path]) -> None:
    """As the next command does for it."""
    assert checkpoints
    quiet(home).newest(1)


Act = Callable[[Path, list[Path]], None]


@pytest.mark.parametrize(
    ("before", "meanwhile", "alone"),
    [
        (None, remove, True),
        (None, add_other, False),
        (remove, add_again, False),
        (announce_export, finish, True),
        (announce_export, remove, False),
    ],
)
def test_what_others_do_between_two_looks_is_no_finding(
    before: Act | None, meanwhile: Act, alone: bool, registry: Registry, checkpoints: list[Path], tmp_path: Path
) -> None:
    home = Path(registry.home)
    (digest,) = LocalStore(str(home)).digests()
    if before is not None:
        before(home, checkpoints)
    for number in count(1):
        copy = Path(shutil.copytree(home, tmp_path / str(number)))
        store = Overtaken(copy, number, lambda: meanwhile(copy, checkpoints))  # noqa: B023
        done = verify(store, None, [digest] if alone else None, now=NOW)
        assert [str(each.error) for each in done.findings] == [], f"before look {number}"
        if not store.was_overtaken:
            assert number > 10
            break


def test_damage_that_was_there_before_is_found_whatever_others_add_meanwhile(
    registry: Registry, checkpoints: list[Path], tmp_path: Path
) -> None:
    home = Path(registry.home)
    flip(min(home.glob("records/*/*/*")))
    other = write_checkpoint(tmp_path / "three", contents(lora_state(seed=7)))
    assert checkpoints
    for number in count(1):
        copy = Path(shutil.copytree(home, tmp_path / str(number)))
        store = Overtaken(copy, number, lambda: quiet(copy).add(other))  # noqa: B023
        assert {each.digest for each in verify(store, None, None, now=NOW).findings} == {
            *LocalStore(str(home)).digests()
        }
        if not store.was_overtaken:
            break
