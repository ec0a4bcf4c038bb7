"""Holding base + adapter against everything engines were served, tensor by tensor, on all cores.

Every worker thread keeps torch to one thread of its own, so that the arithmetic of one tensor, and with it the verdict,
does not depend on how many workers there are.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from registry.core import jsontext
from registry.core.comparison import Comparison, EngineResult, State, Survival, TensorResult, Verdict, verdict, worst
from registry.core.digest import Digest
from registry.core.errors import shortened
from registry.core.tensor import is_zero
from registry.served import runtime
from registry.served.changes import Change, LoraChange
from registry.served.copies import PartResult
from registry.served.evidence import Engine
from registry.served.examine import CopyResult, Outcome, Unit, examine
from registry.served.pairing import Pairing, pair_up
from registry.served.parts import Workspace
from registry.served.plan import Plan
from registry.served.recipes import RECIPES
from registry.served.tally import Tally
from registry.served.weights import Weights

AUTO = "auto"
_TRIED = 6
_NAMED, _CHARACTERS = 50, 200  # names in notes, and characters of each: the record of the comparison keeps them
_TELLING = frozenset({State.IDENTICAL, State.UNTOUCHED, State.VACUOUS, State.BASE})
"""The states of an engine's tensors under its own recipe, where not all of them need have the adapter."""


@runtime.calculating()
def compare(
    plan: Plan,
    base: Weights,
    engines: Sequence[Engine],
    *,
    recipe: str,
    workers: int,
    device: str = "cpu",
    all_b_zero: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare, and say what was found.

    Args:
        plan: what the adapter changes of which base tensor.
        base: the base's weights.
        engines: what each engine was served.
        recipe: one of RECIPES, or `auto`: the one under which some engine's first tensors are bit-equal, else fp32.
        workers: how many threads.
        device: torch's name of where to calculate.
        all_b_zero: whether every lora_B is zero.
        progress: called with the bytes of base that were compared since the last call, and their total.

    Raises:
        UnsupportedLora: an engine's tensors match nothing of the base.
        MalformedFile, StorageError: evidence that cannot be read, or not enough memory.
    """
    entries = {name: base.entry(plan.source(name)) for name in (*base.tensors, *plan.added)}
    shapes = {name: entry.shape for name, entry in entries.items()}
    pairings = [pair_up(shapes, engine.shapes, engine.name) for engine in engines]
    units = _units(pairings)
    sizes = {unit: sum(entries[part].nbytes for part in unit.parts) for unit in units}
    total = sum(sizes.values())
    look = partial(examine, plan=plan, base=base, engines=engines, workspace=Workspace(device))
    outcomes = []
    with runtime.workers(workers) as pool:
        recognised = pool.submit(_recognised, sizes, plan, look).result() if recipe == AUTO else recipe
        chosen = recognised or RECIPES[0]
        stated = pool.submit(runtime.conditions, device).result()
        for outcome in pool.map(partial(look, recipe=chosen), units):
            outcomes.append(outcome)
            if progress is not None:
                progress(sizes[outcome.unit], total)
    results = tuple(_result(index, engine, outcomes, plan) for index, engine in enumerate(engines))
    return Comparison(
        verdict=worst(result.verdict for result in results),
        engines=results,
        recipe=chosen,
        base_digest=_set_digest(
            {
                part: (shapes[part], sha)
                for each in outcomes
                for part, sha in zip(each.unit.parts, each.base, strict=True)
            }
        ),
        conditions=stated,
        all_b_zero=all_b_zero,
        notes=(*_recipe_notes(recognised, chosen, results), *_notes(plan, engines, pairings)),
    )


def _units(pairings: Sequence[Pairing]) -> list[Unit]:
    copies: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for index, pairing in enumerate(pairings):
        for name, parts in pairing.parts.items():
            copies.setdefault(parts, []).append((index, name))
    return [Unit(parts, tuple(found)) for parts, found in sorted(copies.items())]


def _recognised(sizes: Mapping[Unit, int], plan: Plan, look: Callable[..., Outcome]) -> str | None:
    """The recipe under which some engine's copies of a few targeted tensors are all the merge's bits, if there is one.

    The smallest are tried, of those that the adapter can change at all.
    """
    telling = {name for name, change in plan.changes.items() if not _does_nothing(change)}
    targeted = [unit for unit in sizes if not telling.isdisjoint(unit.parts)]
    tried = sorted(targeted, key=lambda unit: (sizes[unit], unit.parts))[:_TRIED]
    for recipe in RECIPES:
        states: dict[int, set[State]] = {}
        for outcome in (look(unit, recipe=recipe) for unit in tried):
            for copy in outcome.copies:
                states.setdefault(copy.engine, set()).update(part.state for part in copy.parts)
        if any(State.IDENTICAL in seen and seen <= _TELLING for seen in states.values()):
            return recipe
    return None


def _does_nothing(change: Change) -> bool:
    return isinstance(change, LoraChange) and is_zero(change.pair.b.contiguous())


def _recipe_notes(recognised: str | None, chosen: str, results: Sequence[EngineResult]) -> Iterator[str]:
    if recognised is None:
        yield f"no recipe gave the bits of the first tensors: {chosen} is what was held against them"
    verdicts = {result.verdict for result in results}
    if Verdict.IDENTICAL in verdicts and Verdict.DIFFERENT in verdicts:
        yield "one recipe is held against all engines: compare one that merges otherwise by itself, with --recipe"


def _result(index: int, engine: Engine, outcomes: Sequence[Outcome], plan: Plan) -> EngineResult:
    copies = [copy for outcome in outcomes for copy in outcome.copies if copy.engine == index]
    results = [(part, _tensor_result(copy, part)) for copy in copies for part in copy.parts]
    seen = {part.part for part, _ in results}
    absent = [
        *(TensorResult(name, State.MISSING, elements=0) for name in sorted(plan.changes.keys() - seen)),
        *(TensorResult(name, State.UNMATCHED, elements=0) for name in plan.unmatched),
        *(TensorResult(name, State.UNSUPPORTED, elements=0) for name in plan.unsupported),
    ]
    tensors = [*(result for _, result in results), *absent]
    shapes = engine.shapes
    return EngineResult(
        engine=engine.name,
        verdict=verdict(tensor.state for tensor in tensors),
        served_digest=_set_digest({copy.name: (shapes[copy.name], copy.sha256) for copy in copies}),
        counts=dict(sorted(Counter(tensor.state for tensor in tensors).items())),
        histogram=_histogram([part.tally for part, _ in results if part.tally is not None]),
        survival=_survival([part for part, _ in results if part.part in plan.changes]),
        tensors=tuple(tensor for tensor in tensors if tensor.state is not State.UNTOUCHED),
        stated=engine.stated,
    )


def _tensor_result(copy: CopyResult, part: PartResult) -> TensorResult:
    name = part.part if len(copy.parts) == 1 else f"{part.part} (in {copy.name})"
    tally = part.tally
    if tally is None:
        return TensorResult(name, part.state, part.elements, why=part.why)
    arrived = _finite(tally.moved / tally.energy) if tally.energy else None
    max_abs = _finite(tally.max_abs)
    return TensorResult(name, part.state, part.elements, tally.differing, tally.max_ulp, max_abs, arrived)


def _histogram(tallies: Sequence[Tally]) -> dict[int, int]:
    total: Counter[int] = Counter()
    for tally in tallies:
        total.update(tally.histogram)
    return {distance: count for distance, count in sorted(total.items()) if count}


def _survival(targeted: Sequence[PartResult]) -> Survival | None:
    tallies = [part.tally for part in targeted if part.tally is not None]
    energy, updated = sum(tally.energy for tally in tallies), sum(tally.updated for tally in tallies)
    if len(tallies) < len(targeted) or not energy:
        return None
    projected = _finite(sum(tally.moved for tally in tallies) / energy)
    return None if projected is None else Survival(projected, sum(tally.kept for tally in tallies) / updated)


def _finite(value: float) -> float | None:
    """None for what JSON cannot say: an engine was served infinite or NaN elements."""
    return value if math.isfinite(value) else None


def _set_digest(tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> Digest:
    """sha256 of the compact JSON `[[name, shape, sha256], ...]`, sorted: the same for tensors and for their listing."""
    rows = [[name, list(shape), sha256] for name, (shape, sha256) in sorted(tensors.items())]
    return Digest(hashlib.sha256(jsontext.compact(rows)).hexdigest())


def _notes(plan: Plan, engines: Sequence[Engine], pairings: Sequence[Pairing]) -> Iterator[str]:
    for name in plan.unsupported[:_NAMED]:
        yield f"not part of this merge: {shortened(name, _CHARACTERS)}"
    if len(plan.unsupported) > _NAMED:
        yield f"nor are {len(plan.unsupported) - _NAMED} more"
    for engine, pairing in zip(engines, pairings, strict=True):
        if pairing.renamed:
            yield f"{engine.name}: names matched through {pairing.renamed}"
        if pairing.strangers:
            sample = ", ".join(shortened(name, _CHARACTERS) for name in pairing.strangers[:3])
            yield f"{engine.name}: {len(pairing.strangers)} tensors are not of the base's names and shapes: {sample}"
        if engine.stated.get("rounding") == "stochastic":
            yield f"{engine.name} states stochastic rounding: within one ULP is the most that equality can show"
