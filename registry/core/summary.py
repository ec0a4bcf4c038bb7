"""What the registry answers about an adapter: the values behind `show` and `list`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from registry.core.comparison import Verdict, worst
from registry.core.digest import Digest


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """One export that gave the adapter.

    `warm_start` is the adapter that its run says it started from, by digest or tensor digest; `resumed_from` the
    checkpoint.
    """

    checkpoint: Digest
    run: str | None
    iteration: int | None
    base: str | None
    base_revision: str | None
    path: str
    reader: str
    exported_at: str
    record: Digest
    warm_start: Digest | None = None
    resumed_from: Digest | None = None


@dataclass(frozen=True, slots=True)
class ComparisonSummary:
    """What one engine was served, held against the adapter on its base, and under which conditions that was done.

    `surviving` and `rounded_away` are `Survival`'s: None where the evidence does not tell.
    """

    engine: str
    verdict: Verdict
    recipe: str
    rounding: str | None
    device: str
    threads: int
    torch: str
    base_digest: Digest
    served_digest: Digest
    surviving: float | None
    rounded_away: float | None
    compared_at: str
    record: Digest


class Status(StrEnum):
    """How a score run ended. The scores of one that stopped early are partial: they are never an adapter's scores."""

    COMPLETED = "completed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ScoreRunSummary:
    """One score run of an adapter.

    Attributes:
        adapter: what it used.
        name: what it is called, if anything.
        status: whether it completed.
        reason: why it stopped early, as it says.
        scores: metric to value, by name; partial ones where it stopped.
        path: where its files were when it was added.
        result_digest, config_digest: sha256 of its run_result.json and config.json.
        scored_at, scored_by: when it was added, and by whom.
        record: of it, in the store.
    """

    adapter: Digest
    name: str | None
    status: Status
    reason: str | None
    scores: tuple[tuple[str, float], ...]
    path: str
    result_digest: Digest
    config_digest: Digest | None
    scored_at: str
    scored_by: str
    record: Digest


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """The score of one metric that stands for an adapter, at an iteration at which a run exported it.

    `iteration` is None where the run states none; `verdict` is the adapter's, None where it was not compared.
    """

    iteration: int | None
    adapter: Digest
    value: float
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class AdapterSummary:
    """One adapter with its exports, comparisons and score runs, oldest first.

    `same_tensors` names others with equal tensors; `scores` are those that stand: of each metric, the newest from a
    score run that completed. `removed_at` is when it was taken out of the store, None for what is there.
    """

    digest: Digest
    tensor_digest: Digest
    bytes: int
    modules: int
    r: int
    lora_alpha: int | float
    use_rslora: bool
    first_exported_at: str
    exports: tuple[ExportSummary, ...]
    comparisons: tuple[ComparisonSummary, ...] = ()
    score_runs: tuple[ScoreRunSummary, ...] = ()
    same_tensors: tuple[Digest, ...] = ()
    aliases: tuple[str, ...] = ()
    removed_at: str | None = None

    @property
    def records(self) -> frozenset[Digest]:
        """The records that this was derived from, but for those of aliases and removals."""
        stated: tuple[ExportSummary | ComparisonSummary | ScoreRunSummary, ...]
        stated = (*self.exports, *self.comparisons, *self.score_runs)
        return frozenset(each.record for each in stated)

    @property
    def verdict(self) -> Verdict | None:
        """The gravest verdict over all evidence, each engine's served weights with their newest one."""
        return standing_verdict((each.engine, each.served_digest.hex, each.verdict) for each in self.comparisons)

    @property
    def scores(self) -> dict[str, float]:
        """Of each metric, the newest value from a score run that completed; by name."""
        found: dict[str, float] = {}
        for run in self.score_runs:
            if run.status is Status.COMPLETED:
                found.update(run.scores)
        return dict(sorted(found.items()))


def standing_verdict(compared: Iterable[tuple[str, str, Verdict]]) -> Verdict | None:
    """The gravest verdict over engines and what they were served (a digest), each with its newest one.

    Args:
        compared: engine, served digest, verdict; oldest first.
    """
    newest = {(engine, served): verdict for engine, served, verdict in compared}
    return worst(newest.values()) if newest else None


@dataclass(frozen=True, slots=True)
class IndexRevision:
    """The schema revision that a database has (None: it is empty) and the one that this program needs."""

    found: str | None
    needed: str


@dataclass(frozen=True, slots=True)
class IndexChange:
    """How the rows of one kind differed from what the store's records say.

    Attributes:
        kind: which rows.
        rows: how many there are now.
        added: those that were missing.
        removed: those that no record states.
        changed: those that said something else.
    """

    kind: str
    rows: int
    added: int
    removed: int
    changed: int
