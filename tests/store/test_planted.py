"""Links, pipes and other things that somebody put into a store: never followed, never waited for, always named."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from registry import IntegrityError, Registry, RegistryError
from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import StorageError
from registry.store import LocalStore
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import snapshot

MONTH = 30 * 24 * 3600.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Digest]:
    """A registry with one adapter, its checkpoint and its digest."""
    root = tmp_path_factory.mktemp("made")
    checkpoint = write_checkpoint(root / "run")
    return root / "home", checkpoint, Registry(root / "home").add(checkpoint).digest


@pytest.fixture
def home(made: tuple[Path, Path, Digest], tmp_path: Path) -> Path:
    shutil.copytree(made[0], tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def digest(made: tuple[Path, Path, Digest]) -> Digest:
    return made[2]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What the links lead to: old files, which nothing here may touch."""
    directory = tmp_path / "outside"
    (directory / "canary").mkdir(parents=True)
    (directory / "canary" / "file").write_text("alive")
    for path in (directory / "canary" / "file", directory / "canary"):
        os.utime(path, (time.time() - MONTH,) * 2)
    return directory


def replace_by_link(path: Path, outside: Path, *, same: bool = True) -> Path:
    """Put a link in a path's place; it leads outside, to what was there or, for `same=False`, to the canary's place."""
    kept = outside / "moved"
    path.rename(kept)
    path.symlink_to(kept if same else outside)
    return path


def attempts(home: Path, digest: Digest, out: Path) -> list[Callable[[], object]]:
    return [
        lambda: Registry(home).get(digest.hex, out),
        lambda: Registry(home).path(digest.hex),
        lambda: Registry(home).path(digest.hex[:8]),
        lambda: Registry(home).show(digest.hex),
    ]


@pytest.mark.parametrize(
    "part", ["adapters", "adapters/{0}", "adapters/{0}/{1}", "records", "records/{0}", "records/{0}/{1}"]
)
def test_directory_that_became_a_link_is_not_read_through_even_to_the_right_bytes(
    part: str, home: Path, digest: Digest, outside: Path, tmp_path: Path
) -> None:
    link = replace_by_link(home / part.format(digest.hex[:2], digest.hex), outside)
    before = snapshot(outside)
    for attempt in attempts(home, digest, tmp_path / "out"):
        with pytest.raises(IntegrityError, match="is a link") as caught:
            attempt()
        assert caught.value.path == str(link)
    assert snapshot(outside) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "export-manifest.json"])
def test_file_that_became_a_link_is_not_read_and_adding_again_replaces_it(
    name: str, home: Path, digest: Digest, outside: Path, made: tuple[Path, Path, Digest], tmp_path: Path
) -> None:
    link = replace_by_link(home / "adapters" / digest.hex[:2] / digest.hex / name, outside)
    before = snapshot(outside)
    with pytest.raises(IntegrityError, match="is a link") as caught:
        Registry(home).get(digest.hex, tmp_path / "out")
    assert caught.value.path == str(link)
    assert Registry(home).add(made[1]).outcome == "repaired"
    assert Registry(home).path(digest.hex)
    assert snapshot(outside) == before


def test_adapter_that_became_a_link_is_replaced_by_adding_again_and_what_it_led_to_stays(
    home: Path, digest: Digest, outside: Path, made: tuple[Path, Path, Digest]
) -> None:
    replace_by_link(home / "adapters" / digest.hex[:2] / digest.hex, outside)
    before = snapshot(outside)
    assert Registry(home).add(made[1]).outcome == "repaired"
    assert not Path(Registry(home).path(digest.hex)).is_symlink()
    assert snapshot(outside) == before


def test_record_that_became_a_link_is_named_and_left_out(home: Path, digest: Digest, outside: Path) -> None:
    (record,) = (home / "records").glob("*/*/*")
    replace_by_link(record, outside)
    before = snapshot(outside)
    with pytest.raises(IntegrityError, match="is a link") as caught:
        LocalStore(str(home)).records(digest)
    assert caught.value.path == str(record)
    assert [error.path for error in Registry(home).reindex().damaged] == [str(record)]
    assert snapshot(outside) == before


def test_link_to_the_records_of_one_adapter_does_not_keep_the_others_out_of_a_new_index(
    home: Path, digest: Digest, outside: Path, tmp_path: Path
) -> None:
    Registry(home).add(write_checkpoint(tmp_path / "other", contents(lora_state(seed=5))))
    link = replace_by_link(home / "records" / digest.hex[:2] / digest.hex, outside)
    done = Registry(home).reindex()
    assert [error.path for error in done.damaged] == [str(link)]
    assert len(Registry(home).newest(9)) == 1


@pytest.mark.parametrize("place", ["pending", "staging", "adapters", "records", "quarantine"])
def test_nothing_is_written_or_swept_through_a_link(
    place: str, home: Path, digest: Digest, outside: Path, made: tuple[Path, Path, Digest], tmp_path: Path
) -> None:
    """The canary is older than what is swept from staging."""
    (home / place).mkdir(exist_ok=True)
    link = replace_by_link(home / place, outside, same=False)
    if place == "quarantine":
        (home / "adapters" / digest.hex[:2] / digest.hex / "adapter_config.json").chmod(0o644)
        (home / "adapters" / digest.hex[:2] / digest.hex / "adapter_config.json").write_text("{}")
        checkpoint = made[1]
    else:
        checkpoint = write_checkpoint(tmp_path / "new", contents(lora_state(seed=7)))
    before = snapshot(outside)
    with pytest.raises(IntegrityError, match="is a link") as caught:
        Registry(home).add(checkpoint)
    assert caught.value.path == str(link)
    assert snapshot(outside) == before


def test_link_in_staging_is_swept_without_what_it_leads_to(home: Path, outside: Path, digest: Digest) -> None:
    staging = home / "staging"
    (staging / "0123456789abcdef~1~aa").symlink_to(outside)
    (staging / "fedcba9876543210~1~bb").mkdir()
    (staging / "fedcba9876543210~1~bb" / "inner").symlink_to(outside)
    (staging / "somebody's").mkdir()
    for path in staging.iterdir():
        os.utime(path, (time.time() - MONTH,) * 2, follow_symlinks=False)
    before = snapshot(outside)
    LocalStore(str(home)).announce(records.make(records.EXPORT, digest, {"a": 1}))
    assert snapshot(outside) == before
    left = {path.name for path in staging.iterdir()}
    assert left == {"0123456789abcdef~1~aa", "somebody's"}, "what is no staging directory is not ours to remove"


def test_pending_that_became_a_link_is_not_unlinked_through(home: Path, digest: Digest, outside: Path) -> None:
    store, record = LocalStore(str(home)), records.make(records.EXPORT, digest, {"a": 1})
    store.announce(record)
    replace_by_link(home / "pending", outside)
    before = snapshot(outside)
    with pytest.raises(IntegrityError, match="is a link"):
        store.settle(record)
    with pytest.raises(IntegrityError, match="is a link"):
        store.unsettled()
    assert snapshot(outside) == before


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # their names may not be long
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_socket])
@pytest.mark.parametrize("what", ["adapters/*/*/adapter_model.safetensors", "adapters/*/*/export-manifest.json"])
def test_stored_file_that_is_no_file_is_damage_and_nobody_waits(
    what: str, make: Callable[[Path], object], home: Path, digest: Digest, tmp_path: Path
) -> None:
    (path,) = home.glob(what)
    path.unlink()
    make(path)
    for attempt in attempts(home, digest, tmp_path / "out")[:3]:
        with pytest.raises(IntegrityError) as caught:
            attempt()
        assert path.name in str(caught.value)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_socket])
@pytest.mark.parametrize("where", ["records/*/*", "pending"])
def test_record_that_is_no_file_is_damage_and_nobody_waits(
    where: str, make: Callable[[Path], object], home: Path, digest: Digest
) -> None:
    (directory,) = home.glob(where)
    planted = directory / f"export-{'0' * 64}.json"
    make(planted)
    store = LocalStore(str(home))
    with pytest.raises(IntegrityError, match="no regular file") as caught:
        store.records(digest) if where != "pending" else store.unsettled()
    assert caught.value.path == str(planted)
    assert [error.path for error in Registry(home).reindex().damaged] == [str(planted)]


@pytest.mark.parametrize("place", ["pending", "staging", "records", "adapters"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.touch])
def test_file_in_a_directorys_place_is_a_storage_error(
    place: str, make: Callable[[Path], object], home: Path, tmp_path: Path
) -> None:
    shutil.rmtree(home / place)
    make(home / place)
    with pytest.raises(StorageError, match="not a directory") as caught:
        Registry(home).add(write_checkpoint(tmp_path / "new", contents(lora_state(seed=7))))
    assert caught.value.path == str(home / place)


def test_home_itself_may_be_a_link_and_have_some_above_it(home: Path, digest: Digest, tmp_path: Path) -> None:
    assert home == tmp_path / "home"
    (tmp_path / "above").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "above" / "home")
    registry = Registry(tmp_path / "link")
    assert registry.path(digest.hex).startswith(str(tmp_path / "link"))
    registry.set_alias("prod", digest.hex)
    assert registry.resolve("prod") == digest


def test_link_on_the_way_to_an_adapter_that_is_not_there_is_named_too(home: Path, outside: Path) -> None:
    (home / "adapters" / "00").symlink_to(outside)
    for reference in ("00" * 32, "0000"):
        with pytest.raises(RegistryError, match="is a link"):
            Registry(home).path(reference)
