"""What the registry answers about an adapter: the values behind `show` and `list`."""

from __future__ import annotations

from dataclasses import dataclass

from registry.core.comparison import Verdict, worst
from registry.core.digest import Digest


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """One export that gave the adapter."""

    checkpoint: Digest
    run: str | None
    iteration: int | None
    base: str | None
    base_revision: str | None
    path: str
    reader: str
    exported_at: str
    record: Digest


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


@dataclass(frozen=True, slots=True)
class AdapterSummary:
    """One adapter with its exports and comparisons, oldest first. `same_tensors` names others with equal tensors."""

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
    same_tensors: tuple[Digest, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def records(self) -> frozenset[Digest]:
        """The records that this was derived from."""
        return frozenset([each.record for each in self.exports] + [each.record for each in self.comparisons])

    @property
    def verdict(self) -> Verdict | None:
        """The gravest verdict over all evidence, each engine's served weights with their newest one."""
        newest = {(each.engine, each.served_digest): each.verdict for each in self.comparisons}
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
