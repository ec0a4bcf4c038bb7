"""Indexes on disk, and the records that fill them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from registry.core import records
from registry.core.records import Record
from registry.index import Database, Index
from registry.operations import export
from tests.support.values import digest_of, read


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where the index's database is made."""
    return tmp_path / "index.sqlite"


@pytest.fixture
def index(database: Path) -> Index:
    return Index(Database(str(database)))


@pytest.fixture(scope="session")
def predicate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A real export manifest."""
    prepared = export.prepare(read(tmp_path_factory.mktemp("export") / "run"))
    return export.manifest_of(prepared, prepared.config, "2026-01-01T00:00:00.000000Z")


@pytest.fixture
def compared() -> Callable[..., Record]:
    """Makes the record of a comparison: `verdicts` by engine."""

    def compared(adapter: str = "adapter", *, at: int = 1, rounding: str | None = None, **verdicts: str) -> Record:
        facts = {
            "recipe": "fp32",
            "base_digest": digest_of("base").hex,
            "conditions": {"torch": "2.9.0", "device": "cpu", "threads": 1},
            "compared_at": f"2026-02-{at:02}T00:00:00.000000Z",
            "engines": [
                {
                    "engine": engine,
                    "verdict": verdict,
                    "served_digest": digest_of(engine).hex,
                    "survival": None if verdict == "incomplete" else {"projected": 0.75, "rounded_away": 0.5},
                    "stated": {} if rounding is None else {"rounding": rounding},
                }
                for engine, verdict in verdicts.items()
            ],
        }
        return records.make(records.COMPARISON, digest_of(adapter), facts)

    return compared


@pytest.fixture
def moved() -> Callable[..., Record]:
    """Makes the record of an alias's move."""

    def moved(
        alias: str, sequence: int, before: str | None = None, after: str | None = None, *, at: int | None = None
    ) -> Record:
        subject, *_ = (digest_of(name) for name in (after, before) if name is not None)
        facts = {
            "format": 1,
            "alias": alias,
            "sequence": sequence,
            "from": before and digest_of(before).hex,
            "to": after and digest_of(after).hex,
            "moved_at": f"2026-03-{at or sequence:02}T00:00:00.000000Z",
            "moved_by": "someone@somewhere",
        }
        return records.make(records.ALIAS, subject, facts)

    return moved


@pytest.fixture
def scored() -> Callable[..., Record]:
    """Makes the record of a score run: metrics by name."""

    def scored(
        adapter: str = "adapter",
        *,
        at: int = 1,
        status: str = "completed",
        path: str = "/runs/eval",
        **metrics: float,
    ) -> Record:
        facts = {
            "format": 1,
            "score_run": {
                "name": "eval",
                "path": path,
                "result": {"sha256": digest_of(f"result {at}").hex, "bytes": 10},
                "config": None,
            },
            "status": status,
            "stop": {"reason": "out of time"} if status == "stopped" else None,
            "scores": metrics,
            "scored_at": f"2026-04-{at:02}T00:00:00.000000Z",
            "scored_by": "someone@somewhere",
        }
        return records.make(records.SCORE, digest_of(adapter), facts)

    return scored


@pytest.fixture
def removed() -> Callable[..., Record]:
    """Makes the record of a removal."""

    def removed(adapter: str = "adapter", *, at: str = "2026-05-01", reason: str | None = None) -> Record:
        facts = {
            "format": 1,
            "reason": reason,
            "removed_at": f"{at}T00:00:00.000000Z",
            "removed_by": "someone@somewhere",
        }
        return records.make(records.REMOVAL, digest_of(adapter), facts)

    return removed


@pytest.fixture
def exported(predicate: dict[str, Any]) -> Callable[..., Record]:
    """Makes the record of an export. What is not said is as in the first one."""

    def exported(
        adapter: str = "adapter", *, at: int = 1, checkpoint: str = "checkpoint", tensors: str = "tensors", **run: Any
    ) -> Record:
        facts = {
            **predicate,
            "checkpoint": {**predicate["checkpoint"], "sha256": digest_of(checkpoint).hex},
            "adapter": {**predicate["adapter"], "tensor_digest": digest_of(tensors).hex},
            "run": {**predicate["run"], **run},
            "exported_at": f"2026-01-{at:02}T00:00:00.000000Z",
        }
        return records.make(records.EXPORT, digest_of(adapter), facts)

    return exported
