"""Getting: every byte that is handed out was verified, and the store is only read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from registry import IntegrityError, NotFound, Refused, Registry
from registry.core.errors import OutputExists
from registry.core.layout import ADAPTER_FILES
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import contents as files_in
from tests.support.trees import flip, snapshot


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Registry, str]:
    """A registry with one adapter, for tests that leave it as it is."""
    root = tmp_path_factory.mktemp("stored")
    registry = Registry(root / "home")
    return registry, registry.add(write_checkpoint(root / "run")).digest.hex


@pytest.fixture(params=ADAPTER_FILES)
def damaged(request: pytest.FixtureRequest, stored: tuple[Registry, str]) -> Iterator[tuple[Registry, str]]:
    """The same while one bit of one file is wrong."""
    file = Path(stored[0].home, "adapters", stored[1][:2], stored[1], request.param)
    flip(file)
    yield stored
    flip(file)


def test_copy_holds_the_stored_files_and_no_other(stored: tuple[Registry, str], tmp_path: Path) -> None:
    registry, digest = stored
    inside = Path(registry.path(digest))
    (inside / "stray.txt").write_text("not an adapter's file")
    try:
        got = Path(registry.get(digest, tmp_path / "out"))
    finally:
        (inside / "stray.txt").unlink()
    assert files_in(got) == files_in(inside)
    assert set(files_in(got)) == set(ADAPTER_FILES)


def test_copy_can_be_changed_without_reaching_the_store(stored: tuple[Registry, str], tmp_path: Path) -> None:
    registry, digest = stored
    got = Path(registry.get(digest, tmp_path / "out"))
    for path in got.iterdir():
        assert path.stat().st_nlink == 1
        assert path.stat().st_ino != (Path(registry.path(digest)) / path.name).stat().st_ino
        with path.open("r+b") as file:
            file.write(b"scribble")
    assert registry.path(digest)


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_copy_has_the_umasks_modes_and_not_the_stores(
    umask: int, mode: int, stored: tuple[Registry, str], tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        got = Path(stored[0].get(stored[1], tmp_path / "out"))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in got.iterdir()} == {mode}


def test_nothing_in_the_registry_is_written(stored: tuple[Registry, str], tmp_path: Path) -> None:
    registry, digest = stored
    before = snapshot(Path(registry.home))
    fresh = Registry(registry.home)
    fresh.get(digest, tmp_path / "out")
    fresh.path(digest)
    assert snapshot(Path(registry.home)) == before


def test_one_wrong_bit_in_any_file_hands_out_nothing(damaged: tuple[Registry, str], tmp_path: Path) -> None:
    registry, digest = damaged
    before = snapshot(Path(registry.home))
    for attempt in (lambda: registry.get(digest, tmp_path / "out"), lambda: registry.path(digest)):
        with pytest.raises(IntegrityError):
            attempt()
    assert list(tmp_path.iterdir()) == []
    assert snapshot(Path(registry.home)) == before


def test_target_inside_the_registry_is_refused_however_it_is_spelled(
    stored: tuple[Registry, str], tmp_path: Path
) -> None:
    registry, digest = stored
    (tmp_path / "link").symlink_to(registry.home)
    before = snapshot(Path(registry.home))
    for target in (
        registry.home,
        f"{registry.home}/out",
        f"{registry.home}/adapters/out",
        f"{registry.home}/../home/out",
        tmp_path / "link" / "out",
    ):
        with pytest.raises(Refused):
            registry.get(digest, target)
    assert snapshot(Path(registry.home)) == before
    assert registry.get(digest, f"{registry.home}-beside"), "a longer name is not inside"


def existing(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("mine")


@pytest.mark.parametrize("make", [existing, Path.mkdir, Path.touch])
def test_target_that_exists_is_refused_and_left_alone(
    make: Callable[[Path], None], stored: tuple[Registry, str], tmp_path: Path
) -> None:
    make(tmp_path / "out")
    before = snapshot(tmp_path)
    with pytest.raises(OutputExists):
        stored[0].get(stored[1], tmp_path / "out")
    assert snapshot(tmp_path) == before


def test_users_own_partial_directory_survives(stored: tuple[Registry, str], tmp_path: Path) -> None:
    existing(tmp_path / "out.partial")
    with pytest.raises(Refused, match="in the way"):
        stored[0].get(stored[1], tmp_path / "out")
    assert files_in(tmp_path) == {"out.partial/mine": b"mine"}


def test_unknown_digest_is_not_found_and_makes_nothing(stored: tuple[Registry, str], tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        stored[0].get("0" * 64, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_adapter_that_was_got_is_the_export_of_its_checkpoint(tmp_path: Path) -> None:
    from registry import export_checkpoint

    checkpoint = write_checkpoint(tmp_path / "run", contents(lora_state(seed=5)))
    registry = Registry(tmp_path / "home")
    got = Path(registry.get(registry.add(checkpoint).digest.hex, tmp_path / "got"))
    exported = Path(export_checkpoint(checkpoint, tmp_path / "exported").directory)
    for name in ADAPTER_FILES[:2]:
        assert (got / name).read_bytes() == (exported / name).read_bytes()
