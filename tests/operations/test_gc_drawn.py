"""GC of registries of any shape: the dry run tells exactly what goes, and what goes is what the rule in plain Python
says."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry import Digest, Registry
from registry.core import records
from registry.core.layout import ADAPTER_FILES
from registry.core.records import Record
from registry.operations import export
from registry.store import LocalStore
from tests.support.values import digest_of, read

MOST = 10


@dataclass(frozen=True)
class Drawn:
    """One adapter. `place` is its run (None for none), iteration and day; `started_from` the number of another."""

    place: tuple[str | None, int | None, int]
    started_from: int | None
    aliased: bool
    scored: bool


ADAPTERS = st.lists(
    st.builds(
        Drawn,
        place=st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 4), st.integers(1, 28)),
        started_from=st.none() | st.integers(0, MOST - 1),
        aliased=st.booleans(),
        scored=st.booleans(),
    ),
    min_size=1,
    max_size=MOST,
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A real one."""
    prepared = export.prepare(read(tmp_path_factory.mktemp("export") / "run"))
    return export.manifest_of(prepared, prepared.config, "2026-01-01T00:00:00.000000Z")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an index, made once."""
    home = tmp_path_factory.mktemp("empty") / "home"
    Registry(home, note=lambda _: None).upgrade_index()
    return home


def digest(number: int) -> Digest:
    return digest_of(f"adapter {number}")


def stated(number: int, each: Drawn, manifest: dict[str, Any]) -> list[Record]:
    """All that is recorded of an adapter, its export first."""
    run, iteration, day = each.place
    facts = copy.deepcopy(manifest)
    facts["checkpoint"]["sha256"] = digest_of(f"checkpoint {number}").hex
    facts["adapter"]["tensor_digest"] = digest_of(f"tensors {number}").hex
    facts["adapter"]["adapter_model.safetensors"]["sha256"] = digest(number).hex
    start = None if each.started_from is None else digest(each.started_from).hex
    facts["run"] |= {"id": run, "iteration": iteration, "warm_start": start, "resumed_from": None}
    facts["exported_at"] = f"2026-01-{day:02}T00:00:00.000000Z"
    found = [records.make(records.EXPORT, digest(number), facts)]
    at = {"moved_at": "2026-02-01T00:00:00.000000Z", "moved_by": "x@y"}
    if each.aliased:
        move = {"format": 1, "alias": f"alias-{number}", "sequence": 1, "from": None, "to": digest(number).hex, **at}
        found.append(records.make(records.ALIAS, digest(number), move))
    if each.scored:
        result = {"name": "eval", "path": "/eval", "result": {"sha256": digest_of(f"result {number}").hex, "bytes": 1}}
        score = {"format": 1, "score_run": {**result, "config": None}, "status": "completed", "stop": None}
        score |= {"scores": {"a": 0.5}, "scored_at": "2026-02-01T00:00:00.000000Z", "scored_by": "x@y"}
        found.append(records.make(records.SCORE, digest(number), score))
    return found


def fill(home: Path, adapters: list[Drawn], manifest: dict[str, Any]) -> Registry:
    """A registry with these adapters; the files of number n have 3 * (n + 1) bytes."""
    registry = Registry(home, note=lambda _: None)
    known = [record for number, each in enumerate(adapters) for record in stated(number, each, manifest)]
    for number in range(len(adapters)):
        directory = Path(LocalStore(str(home)).directory(digest(number)))
        directory.mkdir(parents=True)
        for name in ADAPTER_FILES:
            (directory / name).write_bytes(bytes(number + 1))
    for record in known:
        path = home / "records" / record.subject.hex[:2] / record.subject.hex / record.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record.data)
    registry._opened.index.add(known)
    return registry


def newest(adapters: list[Drawn], count: int) -> set[int]:
    """The last so many of each run; and those of no run."""
    runs: dict[str | None, list[tuple[int, int, str, int]]] = defaultdict(list)
    for number, each in enumerate(adapters):
        run, iteration, day = each.place
        runs[run].append((-1 if iteration is None else iteration, day, digest(number).hex, number))
    kept = {number for *_, number in runs.pop(None, [])}
    for places in runs.values():
        kept |= {number for *_, number in sorted(places, reverse=True)[:count]}
    return kept


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    adapters=ADAPTERS, keep_last=st.none() | st.integers(0, 3), keep_aliased=st.booleans(), keep_scored=st.booleans()
)
def test_dry_run_tells_exactly_what_goes_and_newest_aliased_scored_and_parents_stay(
    adapters: list[Drawn],
    keep_last: int | None,
    keep_aliased: bool,
    keep_scored: bool,
    manifest: dict[str, Any],
    empty: Path,
) -> None:
    kept = {each.started_from for number, each in enumerate(adapters) if each.started_from not in (None, number)}
    kept |= set() if keep_last is None else newest(adapters, keep_last)
    kept |= {number for number, each in enumerate(adapters) if keep_aliased and each.aliased}
    kept |= {number for number, each in enumerate(adapters) if keep_scored and each.scored}
    options: dict[str, Any] = {"keep_last": keep_last, "keep_aliased": keep_aliased, "keep_scored": keep_scored}
    if keep_last is None:
        options["older_than"] = "0h"
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(shutil.copytree(empty, Path(scratch) / "home"))
        registry, store = fill(home, adapters, manifest), LocalStore(str(home))
        told = registry.gc(dry_run=True, **options)
        everything = {digest(number) for number in range(len(adapters))}
        assert set(store.digests()) == everything
        done = registry.gc(**options)
        assert (done, done.failed) == (told, ())
        gone = {digest(number): 3 * (number + 1) for number in range(len(adapters)) if number not in kept}
        assert {each.digest: each.bytes for each in done.gone} == gone
        assert set(store.digests()) == everything - gone.keys()
        assert {each.digest for each in registry.newest(99)} == everything - gone.keys()
