"""What holds an adapter in the registry: whoever relies on it being there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HoldKind(StrEnum):
    """Who relies on an adapter."""

    ALIAS = "alias"
    SCORE_RUN = "score run"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class Hold:
    """One of those who rely on an adapter. `name` is the alias, the score run's path, or the child's digest."""

    kind: HoldKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"
