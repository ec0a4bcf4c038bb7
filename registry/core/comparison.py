"""What a comparison of base + adapter with served weights says: states of tensors, a verdict, and its conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from registry.core.digest import Digest


class State(StrEnum):
    """One tensor of one engine, held against base and merge."""

    IDENTICAL = "identical"  # the merge, bit for bit, and the merge is not the base
    WITHIN_ULP = "within-ulp"  # every element within one unit in the last place of the merge
    BASE = "base"  # the base, bit for bit, where the merge is not: the update is not in it
    VACUOUS = "vacuous"  # the base, and so is the merge: nothing can be told
    DIFFERENT = "different"  # neither
    UNTOUCHED = "untouched"  # not targeted, and the base bit for bit
    ALTERED = "altered"  # not targeted, and not the base
    MISSING = "missing"  # targeted, and not among what the engine was served
    UNMATCHED = "unmatched"  # a module of the adapter that the base does not have
    UNSUPPORTED = "unsupported"  # targeted in a way that this merge cannot form


class Verdict(StrEnum):
    """What the states of all tensors together say (DESIGN 4.7)."""

    IDENTICAL = "identical"
    WITHIN_ULP = "within-ulp"
    VACUOUS = "vacuous"
    INCOMPLETE = "incomplete"
    PARTIAL = "partial"
    DIFFERENT = "different"
    BASE_ONLY = "base-only"


def verdict(states: Iterable[State]) -> Verdict:
    """The verdict over the states of one engine's tensors. It never claims more than every tensor supports."""
    seen = set(states) - {State.UNTOUCHED}
    carried = seen & {State.IDENTICAL, State.WITHIN_ULP}
    if seen & {State.DIFFERENT, State.ALTERED}:
        return Verdict.DIFFERENT
    if State.BASE in seen:
        return Verdict.PARTIAL if carried else Verdict.BASE_ONLY
    if State.UNMATCHED in seen and carried:
        return Verdict.PARTIAL
    if not seen or seen & {State.MISSING, State.UNSUPPORTED, State.UNMATCHED}:
        return Verdict.INCOMPLETE
    if not carried:
        return Verdict.VACUOUS
    return Verdict.WITHIN_ULP if State.WITHIN_ULP in seen else Verdict.IDENTICAL


_BY_GRAVITY = tuple(Verdict)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The gravest of several engines' verdicts."""
    return max(verdicts, key=_BY_GRAVITY.index)


@dataclass(frozen=True, slots=True)
class TensorResult:
    """One targeted or altered tensor.

    Attributes:
        name: as the engine was served it.
        elements: how many it has.
        differing: how many are not the merge's bits; None where only digests were served.
        max_ulp, max_abs: the largest distance from the merge; None likewise, max_abs also where one side is not finite.
        arrived: the part of this tensor's update that is in what was served, as `Survival.projected`; None where there
            is no update or it cannot be told.
        why: what kept its elements from being looked at.
    """

    name: str
    state: State
    elements: int
    differing: int | None = None
    max_ulp: int | None = None
    max_abs: float | None = None
    arrived: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Survival:
    """How much of the update s*B@A is left in the served weights, over all targeted elements.

    Attributes:
        projected: <served - base, update> / <update, update>; 1 when all of it arrived, 0 when none did.
        rounded_away: share of the elements with a non-zero update that are still the base's bits.
    """

    projected: float
    rounded_away: float


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine.

    Attributes:
        engine: its name.
        verdict: over all its tensors.
        served_digest: identity of what it was served, as far as it was compared.
        counts: tensors by state.
        histogram: differing elements of targeted tensors by ULP distance: 0 (sign of zero), 1, 2, then up to 4, 8, ...
        survival: None where digests do not tell, or where there is no update.
        tensors: every tensor that is targeted or altered.
        stated: what the engine itself says of how it was served (rounding, device, threads, dtype).
    """

    engine: str
    verdict: Verdict
    served_digest: Digest
    counts: Mapping[State, int]
    histogram: Mapping[int, int]
    survival: Survival | None
    tensors: tuple[TensorResult, ...]
    stated: Mapping[str, Any]

    @property
    def notable(self) -> tuple[TensorResult, ...]:
        """The tensors that are neither identical nor vacuous."""
        return tuple(each for each in self.tensors if each.state not in {State.IDENTICAL, State.VACUOUS})


@dataclass(frozen=True, slots=True)
class Comparison:
    """An adapter on a base, held against all engines.

    Attributes:
        verdict: the gravest of the engines'.
        engines: each engine's result.
        recipe: the arithmetic of the merge that was held against them.
        base_digest: identity of the base tensors that took part.
        conditions: torch version, device, thread count: the verdict says nothing about others.
        all_b_zero: whether every lora_B is zero, so that a vacuous verdict is right and not a fault.
        notes: what a person should know, a sentence each.
    """

    verdict: Verdict
    engines: tuple[EngineResult, ...]
    recipe: str
    base_digest: Digest
    conditions: Mapping[str, Any]
    all_b_zero: bool
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the engines had the adapter, or no adapter could have changed anything."""
        return self.verdict in {Verdict.IDENTICAL, Verdict.WITHIN_ULP} or (
            self.verdict is Verdict.VACUOUS and self.all_b_zero
        )
