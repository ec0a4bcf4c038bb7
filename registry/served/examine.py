"""One unit of a comparison: base tensors, their merge, and every engine's copy of them. Runs in a worker thread."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from registry.core.comparison import State
from registry.served.copies import Copy, ListedCopy, PartResult, SeenCopy
from registry.served.evidence import Engine
from registry.served.parts import Part, Workspace
from registry.served.plan import Plan
from registry.served.tally import Tally
from registry.served.weights import Weights

_NEARLY = 1e-2
"""Share of differing elements below which another order of additions may be the cause."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Base tensors (`parts`) that some engines hold as the rows of one tensor: `copies` are engine index and name."""

    parts: tuple[str, ...]
    copies: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class CopyResult:
    """One engine's copy of a unit: its sha256, and a result for each part."""

    engine: int
    name: str
    sha256: str
    parts: tuple[PartResult, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a unit gave: the base tensors' sha256 in the order of its parts, and every copy."""

    unit: Unit
    base: tuple[str, ...]
    copies: tuple[CopyResult, ...]


def examine(
    unit: Unit, plan: Plan, base: Weights, engines: Sequence[Engine], workspace: Workspace, recipe: str
) -> Outcome:
    """Read a unit's tensors, form the merge under `recipe`, and hold every copy against it.

    Where a few elements are not equal, or nobody can know how many because only digests are known, the merge is formed
    once more from whole products, before anyone is told.
    """
    outcome = _examine(unit, plan, base, engines, workspace, recipe, whole=False)
    if workspace.device != "cpu":  # whole products are formed on the CPU, and are no other order of this device's
        return outcome
    parts = [part for copy in outcome.copies for part in copy.parts]
    if any(_is_nearly(part.tally) if part.tally else part.state is State.DIFFERENT for part in parts):
        return _examine(unit, plan, base, engines, workspace, recipe, whole=True)
    return outcome


def _is_nearly(tally: Tally) -> bool:
    return 0 < tally.differing < _NEARLY * tally.elements and not tally.equals_base


def _examine(
    unit: Unit,
    plan: Plan,
    base: Weights,
    engines: Sequence[Engine],
    workspace: Workspace,
    recipe: str,
    *,
    whole: bool,
) -> Outcome:
    copies = [_copy(engines[index], name, workspace) for index, name in unit.copies]
    hashes = []
    for name in unit.parts:
        part = Part(name, plan, base, workspace, recipe, whole=whole)
        hasher = hashlib.sha256()
        for copy in copies:
            copy.begin(part)
        for block in part.blocks():
            hasher.update(block.raw)
            for copy in copies:
                copy.add(block)
        hashes.append(hasher.hexdigest())
    results = (CopyResult(index, name, *copy.finish()) for (index, name), copy in zip(unit.copies, copies, strict=True))
    return Outcome(unit, tuple(hashes), tuple(results))


def _copy(engine: Engine, name: str, workspace: Workspace) -> Copy:
    if engine.weights is None:
        return ListedCopy(engine.listed[name])
    return SeenCopy(engine.weights.tensors[name], workspace)
