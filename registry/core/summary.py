"""What the registry answers about an adapter: the values behind `show` and `list`."""

from __future__ import annotations

from dataclasses import dataclass

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
class AdapterSummary:
    """One adapter with its exports, oldest first. `same_tensors` names other adapters with equal tensors."""

    digest: Digest
    tensor_digest: Digest
    bytes: int
    modules: int
    r: int
    lora_alpha: int | float
    use_rslora: bool
    first_exported_at: str
    exports: tuple[ExportSummary, ...]
    same_tensors: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexRevision:
    """The schema revision that a database has (None: it is empty) and the one that this program needs."""

    found: str | None
    needed: str
