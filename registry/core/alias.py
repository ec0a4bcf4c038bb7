"""What the registry answers about aliases: where each one stands, and the moves that brought it there."""

from __future__ import annotations

from dataclasses import dataclass

from registry.core.digest import Digest


@dataclass(frozen=True, slots=True)
class AliasMove:
    """One move of an alias.

    Attributes:
        name: of the alias, as it was spelled in this move.
        sequence: 1 for the alias's first move, and one more for each that follows.
        before, after: the adapters it named before and after; None for none.
        moved_at, moved_by: when (UTC, ISO 8601) and who, `user@host`.
        record: of the move, in the store.
    """

    name: str
    sequence: int
    before: Digest | None
    after: Digest | None
    moved_at: str
    moved_by: str
    record: Digest
