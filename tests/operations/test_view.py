"""A view holds the adapters that were asked for, whole and right, and no others: whoever else was at work in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from registry import Digest, IntegrityError, NotFound, Refused, Registry
from registry.core.errors import Conflict, OutputExists, RegistryError, StorageError
from registry.core.layout import ADAPTER_FILES, CONFIG, WEIGHTS
from registry.operations.view import MARK, Viewed
from tests.support.process import CommandLine
from tests.support.runs import contents as saved
from tests.support.runs import lora_state, write_checkpoint
from tests.support.strace import inject, needs_strace
from tests.support.taking import plain
from tests.support.trees import contents, flip, snapshot


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Digest]]:
    """Three adapters of the run `run`, the last of which only peft loads as what it is, and one of no run."""
    root = tmp_path_factory.mktemp("shelf")
    registry = Registry(root / "home")
    found = []
    for number in (1, 2, 3):
        contents = saved(lora_state(seed=number), iteration=number, **({"rslora": True} if number == 3 else {}))
        found.append(registry.add(write_checkpoint(root / "run", contents, iteration=number)).digest)
    other = plain(root / "other", base_model_name_or_path="org/other")
    found.append(registry.add(other).digest)
    return root / "home", found


def assert_shows(registry: Registry, view: Path, *digests: Digest) -> None:
    """Exactly these, each as it is stored, and nothing half-made."""
    assert sorted(os.listdir(view)) == sorted([MARK, *(digest.hex for digest in digests)])
    for digest in digests:
        assert contents(view / digest.hex) == contents(Path(registry.path(digest.hex)))
        for path in (view / digest.hex).iterdir():
            assert not path.is_symlink()
            assert path.stat().st_nlink == 1, "nothing done to it reaches the store"


def changes(viewed: Viewed) -> dict[Digest, str]:
    return {digest: change.value for digest, change in viewed.adapters.items()}


def test_view_holds_real_copies_under_their_digests(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    view = tmp_path / "view"
    first = registry.view(view, [adapters[1].hex, "run@1"], engine="vllm")
    assert (first.directory, changes(first)) == (str(view), {adapters[1]: "added", adapters[0]: "added"})
    assert_shows(registry, view, *adapters[:2])
    assert (first.removed, first.left_out, first.bases) == ((), {}, {"org/base": 2})


def test_doing_it_again_changes_nothing_and_asking_for_others_removes_the_rest(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    view = tmp_path / "view"
    registry.view(view, ["run@1", "run@2"], engine="vllm")
    before = snapshot(*(view / digest.hex for digest in adapters[:2]))
    again = registry.view(view, ["run@1", "run@2"], engine="vllm")
    assert changes(again) == dict.fromkeys(adapters[:2], "kept")
    assert snapshot(*(view / digest.hex for digest in adapters[:2])) == before
    fewer = registry.view(view, ["run@2"], engine="vllm")
    assert (changes(fewer), fewer.removed) == ({adapters[1]: "kept"}, (adapters[0],))
    assert_shows(registry, view, adapters[1])


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({}, (0, 1, 2, 3)),
        ({"run": "run"}, (0, 1, 2)),
        ({"run": "run", "newest": 2}, (1, 2)),
        ({"newest": 1}, (3,)),
    ],
)
def test_a_run_or_all_or_the_newest_of_them_are_shown(
    asked: dict[str, object], shown: tuple[int, ...], registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    registry.view(tmp_path / "view", engine="peft", **asked)
    assert_shows(registry, tmp_path / "view", *(adapters[number] for number in shown))


def test_references_come_beside_a_run(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    registry.view(tmp_path / "view", [adapters[3].hex], engine="peft", run="run", newest=1)
    assert_shows(registry, tmp_path / "view", adapters[2], adapters[3])


@pytest.mark.parametrize("asked", [{"run": "rum"}, {"references": ["run@9"]}, {"run": "rum", "newest": 2}])
def test_a_name_that_is_not_known_empties_no_view(
    asked: dict[str, object], registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    registry.view(tmp_path / "view", ["run@1"], engine="vllm")
    with pytest.raises(NotFound):
        registry.view(tmp_path / "view", engine="vllm", **asked)
    with pytest.raises(NotFound):
        Registry(tmp_path / "nothing").view(tmp_path / "view", engine="vllm")
    assert not (tmp_path / "nothing").exists()
    assert_shows(registry, tmp_path / "view", adapters[0])


def test_what_the_engine_would_not_serve_as_it_is_is_left_out_and_taken_out(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    view = tmp_path / "view"
    registry.view(view, run="run", engine="peft")
    assert_shows(registry, view, *adapters[:3])
    found = registry.view(view, run="run", engine="sglang")
    assert_shows(registry, view, *adapters[:2])
    assert found.removed == (adapters[2],)
    assert found.left_out.keys() == {adapters[2]}
    assert isinstance(found.left_out[adapters[2]], Refused)
    assert "use_rslora" in str(found.left_out[adapters[2]])


def test_a_copy_that_was_changed_is_made_anew(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    view = tmp_path / "view"
    copies = registry.view(view, run="run", engine="vllm").adapters
    assert copies.keys() == {*adapters[:3]}
    flip(view / adapters[0].hex / WEIGHTS)
    (view / adapters[1].hex / CONFIG).unlink()
    found = registry.view(view, run="run", engine="vllm")
    assert changes(found) == {adapters[0]: "repaired", adapters[1]: "repaired", adapters[2]: "kept"}
    assert_shows(registry, view, *adapters[:3])


@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_what_is_damaged_in_the_store_is_not_shown_and_stops_no_other(
    name: str, registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    view = tmp_path / "view"
    flip(Path(registry.path(adapters[0].hex)) / name)
    found = registry.view(view, run="run", engine="vllm")
    assert isinstance(found.left_out[adapters[0]], IntegrityError)
    assert_shows(registry, view, adapters[1], adapters[2])


def test_one_name_for_the_base_is_given_to_every_copy(
    registry: Registry, adapters: list[Digest], tmp_path: Path
) -> None:
    view = tmp_path / "view"
    registry.view(view, ["run@1"], engine="vllm")
    found = registry.view(view, ["run@1", "run@2"], engine="vllm", base_name="served")
    assert (changes(found), found.bases) == ({adapters[0]: "repaired", adapters[1]: "added"}, {"served": 2})
    for digest in adapters[:2]:
        assert json.loads((view / digest.hex / CONFIG).read_text())["base_model_name_or_path"] == "served"
    again = registry.view(view, ["run@1", "run@2"], engine="vllm", base_name="served")
    assert set(changes(again).values()) == {"kept"}


def test_one_name_for_two_bases_is_refused(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    view = tmp_path / "view"
    registry.view(view, ["run@1"], engine="vllm")
    with pytest.raises(Refused, match="org/base, org/other"):
        registry.view(view, engine="vllm", base_name="served")
    assert_shows(registry, view, adapters[0])


def a_file(view: Path) -> None:
    view.write_text("mine")


def a_full_directory(view: Path) -> None:
    view.mkdir()
    (view / "mine").write_text("mine")


def a_link(view: Path) -> None:
    (view.parent / "elsewhere").mkdir()
    view.mkdir()
    (view / MARK).symlink_to(view.parent / "elsewhere" / "file")


@pytest.mark.parametrize(
    ("make", "kind"), [(a_file, OutputExists), (a_full_directory, OutputExists), (a_link, StorageError)]
)
def test_what_is_no_view_stays_as_it_is(
    make: Callable[[Path], None], kind: type[RegistryError], registry: Registry, tmp_path: Path
) -> None:
    view = tmp_path / "place" / "view"
    view.parent.mkdir()
    make(view)
    before = snapshot(view.parent)
    with pytest.raises(kind, match=str(view)):
        registry.view(view, engine="vllm")
    assert snapshot(view.parent) == before


def test_an_empty_directory_becomes_one(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    registry.view(tmp_path / "view", ["run@1"], engine="vllm")
    assert_shows(registry, tmp_path / "view", adapters[0])


def test_files_of_others_stay_and_are_named(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    view = tmp_path / "view"
    registry.view(view, ["run@1", "run@2"], engine="vllm")
    (view / "README").write_text("mine")
    registry.view(view, ["run@1", "run@2"], engine="vllm")
    (view / adapters[0].hex / "notes").write_text("mine")
    before = contents(view)
    with pytest.raises(OutputExists, match=f"{adapters[0].hex}.*notes"):
        registry.view(view, ["run@2"], engine="vllm")
    assert contents(view) == before


def test_a_view_inside_the_registry_is_refused(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="inside the registry"):
        registry.view(tmp_path / "home" / "view", engine="vllm")


@contextmanager
def locked(view: Path) -> Iterator[None]:
    with (view / MARK).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_two_at_once_do_not_mix_what_they_want(registry: Registry, adapters: list[Digest], tmp_path: Path) -> None:
    view = tmp_path / "view"
    registry.view(view, ["run@1"], engine="vllm")
    with locked(view), pytest.raises(Conflict, match="another process"):
        registry.view(view, ["run@2"], engine="vllm")
    assert_shows(registry, view, adapters[0])
    registry.view(view, ["run@2"], engine="vllm")
    assert_shows(registry, view, adapters[1])


@needs_strace
@pytest.mark.parametrize("call", ["mkdir", "write", "rename", "unlinkat", "rmdir"])
def test_killed_at_any_step_each_adapter_is_whole_or_missing_and_the_next_run_finishes(
    call: str, shelf: tuple[Path, list[Digest]], tmp_path: Path
) -> None:
    adapters = shelf[1]
    cli = CommandLine(tmp_path / "home")
    shutil.copytree(shelf[0], cli.home)
    registry = Registry(cli.home)
    view = tmp_path / "view"
    kills = 0
    for number in range(1, 40):
        shutil.rmtree(view, ignore_errors=True)
        registry.view(view, ["run@1", "run@3"], engine="vllm")
        flip(view / adapters[2].hex / WEIGHTS)
        wanted = ("view", view, "run@2", "run@3", "--for", "vllm")
        done = inject(cli, *wanted, fault=f"{call}:signal=KILL:when={number}")
        if done.code == 0:
            break
        assert done.code == -signal.SIGKILL
        kills += 1
        for path in view.iterdir():
            if path.name in {digest.hex for digest in adapters} - {adapters[2].hex}:
                assert contents(path) == contents(Path(registry.path(path.name)))
        cli.ok(*wanted)
        assert_shows(registry, view, adapters[1], adapters[2])
    else:
        pytest.fail("there was always one more")
    assert kills
