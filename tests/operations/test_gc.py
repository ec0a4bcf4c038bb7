"""GC: exactly what a policy lets go, as it was told before, and nothing that anybody relies on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from registry import Digest, IntegrityError, Refused, Registry
from registry.core import records
from registry.core.summary import AdapterSummary
from registry.store import LocalStore
from tests.support.process import COMMAND, CommandLine
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.scoring import add_run, result_of, write_score_run
from tests.support.trees import flip, snapshot


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Digest]]:
    """Runs a (1 to 4), b (1, 2, 2), c, which started from a@1; one of no run; an alias of a@2, a score of b@1."""
    root = tmp_path_factory.mktemp("shelf")
    registry = Registry(root / "home", note=lambda _: None)
    named = {f"a{number}": each for number, each in enumerate(add_run(registry, root, "a", (1, 2, 3, 4)), 1)}
    named |= {f"b{number}": each for number, each in enumerate(add_run(registry, root, "b", (1, 2, 2), seed=20), 1)}
    named["none"] = registry.add(write_checkpoint(root / "none", contents(lora_state(seed=40)), config={})).digest
    started = {"run_id": "c", "model": {"base": "org/base", "adapter": str(named["a1"])}}
    named["c1"] = registry.add(write_checkpoint(root / "c", contents(lora_state(seed=50)), config=started)).digest
    registry.set_alias("prod", named["a2"].hex)
    registry.add_score(write_score_run(root / "eval", result_of(named["b1"])))
    return root / "home", named


@pytest.fixture
def registry(shelf: tuple[Path, dict[str, Digest]], tmp_path: Path) -> Registry:
    shutil.copytree(shelf[0], tmp_path / "home")
    return Registry(tmp_path / "home", note=lambda _: None)


@pytest.fixture
def named(shelf: tuple[Path, dict[str, Digest]]) -> dict[str, Digest]:
    return shelf[1]


def kept_as_last(listed: list[AdapterSummary], count: int) -> set[Digest]:
    """The rule in plain Python."""
    kept = set()
    by_run: dict[str, dict[Digest, Any]] = {}
    for each in listed:
        for export in each.exports:
            if export.run is None:
                kept.add(each.digest)
                continue
            place = (-1 if export.iteration is None else export.iteration, export.exported_at, each.digest)
            last = by_run.setdefault(export.run, {})
            last[each.digest] = max(place, last.get(each.digest, place))
    for last in by_run.values():
        kept |= set(sorted(last, key=lambda digest: last[digest], reverse=True)[:count])
    return kept


@pytest.mark.parametrize("keep_aliased", [True, False])
@pytest.mark.parametrize("keep_scored", [True, False])
@pytest.mark.parametrize("keep_last", [0, 1, 2, 3, 9, None])
def test_what_goes_is_what_the_rule_says_and_what_the_dry_run_told(
    keep_last: int | None, keep_scored: bool, keep_aliased: bool, registry: Registry, named: dict[str, Digest]
) -> None:
    options: dict[str, Any] = {"keep_last": keep_last, "keep_aliased": keep_aliased, "keep_scored": keep_scored}
    if keep_last is None:
        options["older_than"] = "0h"
    listed = registry.newest(99)
    kept = {named["a1"]} | (set() if keep_last is None else kept_as_last(listed, keep_last))
    kept |= {named["a2"]} if keep_aliased else set()
    kept |= {named["b1"]} if keep_scored else set()
    before = snapshot(*(Path(registry.home) / name for name in ("adapters", "records", "pending")))
    told = registry.gc(dry_run=True, **options)
    assert snapshot(*(Path(registry.home) / name for name in ("adapters", "records", "pending"))) == before
    assert {each.digest for each in told.gone} == {*named.values()} - kept
    sizes = {each.digest: each.bytes for each in told.gone}
    for digest, size in sizes.items():
        assert size == sum(path.stat().st_size for path in Path(registry.path(digest.hex)).iterdir())
    done = registry.gc(**options)
    assert done == told
    assert done.bytes == sum(sizes.values())
    assert {each.digest for each in registry.newest(99)} == kept
    assert set(LocalStore(registry.home).digests()) == kept
    for digest in sizes:
        (record,) = LocalStore(registry.home).records(digest, records.REMOVAL)
        assert str(record.predicate["reason"]).startswith("gc: ")


def place(registry: Registry, digest: Digest) -> Path:
    return Path(registry.home) / "adapters" / digest.hex[:2] / digest.hex


@pytest.mark.parametrize("dry_run", [True, False])
def test_adapter_whose_files_are_gone_already_is_passed_over_and_the_others_go(
    dry_run: bool, registry: Registry
) -> None:
    first, *others = registry.gc(keep_last=0, dry_run=True).gone
    shutil.rmtree(place(registry, first.digest))
    done = registry.gc(keep_last=0, dry_run=dry_run)
    assert (done.gone, done.failed) == (tuple(others), ())
    assert [place(registry, each.digest).exists() for each in others] == [dry_run] * len(others)
    assert LocalStore(registry.home).records(first.digest, records.REMOVAL) == []


def test_adapter_that_cannot_be_removed_is_told_and_stays_and_the_others_go(registry: Registry) -> None:
    first, *others = registry.gc(keep_last=0, dry_run=True).gone
    (record,) = (Path(registry.home) / "records" / first.digest.hex[:2] / first.digest.hex).glob("export-*")
    flip(record)
    done = registry.gc(keep_last=0)
    assert [(type(error), error.path) for error in done.failed] == [(IntegrityError, str(record))]
    assert done.gone == tuple(others)
    assert {each.digest for each in others}.isdisjoint(LocalStore(registry.home).digests())
    assert place(registry, first.digest).exists()


def test_age_counts_from_the_first_export(registry: Registry) -> None:
    assert registry.gc(older_than="1h").gone == ()
    assert registry.gc(older_than="999999w").gone == (), "before all times"
    assert registry.gc(keep_last=0, older_than="1h").gone == ()


@pytest.mark.parametrize("options", [{}, {"keep_last": -1}, {"older_than": "5"}, {"older_than": "-1d"}])
def test_policy_that_says_nothing_removes_nothing(options: dict[str, Any], registry: Registry) -> None:
    with pytest.raises(Refused):
        registry.gc(**options)
    assert len(registry.newest(99)) == 9


def test_beside_adds_every_adapter_is_there_whole_or_removed(registry: Registry, tmp_path: Path) -> None:
    cli = CommandLine(Path(registry.home))
    checkpoints = [
        write_checkpoint(tmp_path / "d", contents(lora_state(seed=60 + number)), iteration=number)
        for number in range(4)
    ]
    commands = [*(["add", str(each)] for each in checkpoints), *([["gc", "--keep-last", "1"]] * 3)]
    processes = [
        subprocess.Popen(
            [*COMMAND, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cli.environment()
        )
        for command in commands
    ]
    ended = [(process.communicate(), process.returncode) for process in processes]
    assert [code for _, code in ended] == [0] * len(commands), ended
    registry.gc(keep_last=1)
    assert registry.verify().findings == ()
    assert len({export.iteration for each in registry.newest(99) for export in each.exports if export.run == "d"}) == 1
