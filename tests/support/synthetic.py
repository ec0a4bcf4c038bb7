"""Registries of any size that never saw a tensor: the records of adapters, runs, comparisons, score runs and aliases as
they would be after months of training. The same numbers give the same records.

Run k > 0 starts from the best adapter of run k // 2, so that a million adapters in 2,000 runs are about ten generations
deep. Two of a hundred adapters were compared with what was served, five were scored; r 64 is in the oldest 1,000 only.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.adapter.manifest import export_manifest
from registry.core import jsontext, records
from registry.core.comparison import Verdict
from registry.core.digest import Digest
from registry.core.dtypes import BY_NAME
from registry.core.layout import MANIFEST
from registry.core.model import Checkpoint, Lora, LoraPair, LoraSettings, Provenance
from registry.core.records import Record
from registry.core.tensor import Tensor

BASES = ("org/small", "org/medium", "org/large")
RANKS = (8, 16, 32)
OLD_RANK = 64
OLD = 1000
"""So many of the oldest adapters have OLD_RANK."""
ALIASES = 20
METRICS = ("pass@1", "pass@8", "loss")
COMPARED_EVERY, SCORED_EVERY = 50, 20
_SKEW = (
    (Verdict.DIFFERENT, 1),
    (Verdict.BASE_ONLY, 15),
    (Verdict.PARTIAL, 14),
    (Verdict.INCOMPLETE, 30),
    (Verdict.VACUOUS, 40),
    (Verdict.WITHIN_ULP, 200),
    (Verdict.IDENTICAL, 700),
)
_VERDICTS = [verdict for verdict, share in _SKEW for _ in range(share)]
_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_APART = dt.timedelta(seconds=20)
_EMPTY = Tensor(BY_NAME["float32"], (0, 0), (0, 1), memoryview(b""))
_PAIRS = tuple(LoraPair(f"model.layers.{layer}.self_attn.q_proj", _EMPTY, _EMPTY) for layer in range(24))
_VERSIONS = {"aorlta-registry": "0", "python": "3"}


def named(what: str, number: int) -> Digest:
    """The digest of something that need not exist."""
    return Digest(hashlib.sha256(f"{what} {number}".encode()).hexdigest())


@dataclass(frozen=True)
class Synthetic:
    """`adapters` adapters of `runs` runs, numbered from the oldest on; run `a` has the first ones, and so on."""

    adapters: int
    runs: int

    def run_of(self, number: int) -> int:
        """The run of an adapter."""
        return number * self.runs // self.adapters

    def first_of(self, run: int) -> int:
        """The oldest adapter of a run."""
        return -(-run * self.adapters // self.runs)

    def run_name(self, run: int) -> str:
        """What a run is called."""
        return f"run-{run:05}"

    def iteration_of(self, number: int) -> int:
        """Counted from 1 in each run."""
        return number - self.first_of(self.run_of(number)) + 1

    def best_of(self, run: int) -> int:
        """The adapter from which later runs start."""
        first, after = self.first_of(run), self.first_of(run + 1)
        return first + (after - first) * 3 // 4

    def digest(self, number: int) -> Digest:
        """An adapter's digest."""
        return named("adapter", number)

    def time(self, number: int, later: int = 0) -> str:
        """When an adapter was exported, or so many seconds later."""
        at = _START + number * _APART + dt.timedelta(seconds=later)
        return at.isoformat(timespec="microseconds").replace("+00:00", "Z")

    def alias_names(self, alias: int) -> int:
        """The adapter that alias-<n> names in the end."""
        return (alias + 1) * self.adapters // (alias + 2)

    def records(self) -> Iterator[Record]:
        """Every record, sorted by adapter, an adapter's export first."""
        moves = self._moves()
        order = sorted(range(self.adapters), key=lambda number: hashlib.sha256(f"adapter {number}".encode()).digest())
        for number in order:
            for kind, predicate in self._facts(number):
                yield _make(kind, self.digest(number), predicate)
            for move in moves.get(number, ()):
                yield _make(records.ALIAS, self.digest(number), move)

    def write(self, home: Path) -> int:
        """Write all records into the store of a registry, as fast as files can be made; returns how many."""
        count = 0
        for record in self.records():
            _write(home, record)
            count += 1
        return count

    def stand_in(self, home: Path, number: int) -> None:
        """Write an adapter's directory and records, as far as they are looked at without its tensors."""
        directory = home / "adapters" / self.digest(number).hex[:2] / self.digest(number).hex
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MANIFEST).write_bytes(jsontext.pretty(self._export(number)))
        for kind, predicate in self._facts(number):
            _write(home, _make(kind, self.digest(number), predicate))

    def _facts(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        yield records.EXPORT, self._export(number)
        if number % COMPARED_EVERY == 7:
            yield records.COMPARISON, self._comparison(number)
        if number % SCORED_EVERY == 3:
            yield records.SCORE, self._score_run(number)

    def _export(self, number: int) -> dict[str, Any]:
        run = self.run_of(number)
        rank = OLD_RANK if number < OLD else RANKS[run % len(RANKS)]
        start = self.digest(self.best_of(run // 2)) if run else None
        checkpoint = replace(
            _CHECKPOINT,
            path=f"/runs/{self.run_name(run)}/ckpt/iter-{self.iteration_of(number)}/trainer.pt",
            digest=named("checkpoint", number),
            lora=Lora(LoraSettings(rank, 2 * rank), _PAIRS),
            provenance=Provenance(self.run_name(run), self.iteration_of(number), BASES[run % 7 % 3], "main", start),
        )
        return export_manifest(
            checkpoint,
            weights=(self.digest(number), 1_000_000 + number),
            config=(named("config", run), 1400),
            tensors=named("tensors", number - number % 1000 if number % 1000 == 1 else number),
            versions=_VERSIONS,
            exported_at=self.time(number),
        )

    def _comparison(self, number: int) -> dict[str, Any]:
        verdict = _VERDICTS[number // COMPARED_EVERY % len(_VERDICTS)]
        return {
            "recipe": "fp32",
            "base_digest": named("base", self.run_of(number) % 7 % 3).hex,
            "conditions": {"torch": "2.9.0", "device": "cpu", "threads": 1},
            "compared_at": self.time(number, 5),
            "engines": [
                {
                    "engine": "engine-0",
                    "verdict": verdict.value,
                    "served_digest": named("served", number).hex,
                    "survival": {"projected": 1.0, "rounded_away": 0.01},
                    "stated": {"rounding": "nearest"},
                }
            ],
        }

    def _score_run(self, number: int) -> dict[str, Any]:
        nth = number // SCORED_EVERY
        stopped = nth % 25 == 0
        value = int(self.digest(number).hex[:8], 16) % 1001 / 1000
        return {
            "format": 1,
            "score_run": {
                "name": f"eval-{nth}",
                "path": f"/runs/eval-{nth}",
                "result": {"sha256": named("result", number).hex, "bytes": 500},
                "config": {"sha256": named("settings", 0).hex, "bytes": 300},
            },
            "status": "stopped" if stopped else "completed",
            "stop": {"reason": "out of time", "detail": {}} if stopped else None,
            "scores": {
                name: value if place == 0 else 1 - value for place, name in enumerate(METRICS) if nth % (place + 1) == 0
            },
            "scored_at": self.time(number, 10),
            "scored_by": "someone@somewhere",
        }

    def _moves(self) -> dict[int, list[dict[str, Any]]]:
        """The moves of aliases: alias-<n> was moved n + 1 times, to adapters that are spread over all."""
        found: dict[int, list[dict[str, Any]]] = {}
        for alias in range(ALIASES):
            path = [(step + 1) * self.adapters // (alias + 2) for step in range(alias + 1)]
            before: Digest | None = None
            for sequence, number in enumerate(path, start=1):
                move = {
                    "format": 1,
                    "alias": f"alias-{alias}",
                    "sequence": sequence,
                    "from": before and before.hex,
                    "to": self.digest(number).hex,
                    "moved_at": self.time(number, 15),
                    "moved_by": "someone@somewhere",
                }
                found.setdefault(number, []).append(move)
                before = self.digest(number)
        return found


_CHECKPOINT = Checkpoint(
    path="",
    digest=named("checkpoint", 0),
    size=3_000_000,
    reader="aorlta",
    manifest=None,
    lora=Lora(LoraSettings(8, 16), _PAIRS),
    alpha_source="checkpoint",
    provenance=Provenance(),
)


def _write(home: Path, record: Record) -> None:
    directory = home / "records" / record.subject.hex[:2] / record.subject.hex
    os.makedirs(directory, exist_ok=True)
    (directory / record.name).write_bytes(record.data)


def _make(kind: str, subject: Digest, predicate: dict[str, Any]) -> Record:
    """The record as `records.make` makes it, but on one line, which takes a fifth of the time and is read as well."""
    statement = {
        "_type": records.STATEMENT,
        "subject": [{"digest": {"sha256": subject.hex}}],
        "predicateType": f"urn:aorlta-reg:{kind}:v1",
        "predicate": predicate,
    }
    data = jsontext.compact(statement)
    return Record(kind, subject, predicate, data, Digest(hashlib.sha256(data).hexdigest()))
