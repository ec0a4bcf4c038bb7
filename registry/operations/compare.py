"""Compare: an adapter on its base, held against what engines were served, with the result kept as a record."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from registry.adapter.stored import read_adapter
from registry.core import jsontext, records
from registry.core.comparison import Comparison, EngineResult
from registry.core.digest import Digest
from registry.core.errors import Refused
from registry.core.layout import CONFIG, WEIGHTS
from registry.core.peft_config import is_quantised
from registry.core.records import Record
from registry.core.tensor import is_zero
from registry.core.version import VERSION
from registry.operations import seal
from registry.served import compare as served
from registry.served import recipes
from registry.served.evidence import Engine, open_engines
from registry.served.plan import plan
from registry.served.runtime import require_device, require_torch
from registry.served.weights import open_weights
from registry.store import Store, pass_over

FORMAT = 1
_LISTED = 1000  # tensors an engine; `counts` has all of them
RECIPES = (served.AUTO, *recipes.RECIPES)
_VOLATILE = frozenset({"compared_at", "versions", "base_path", "served_paths"})


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of `compare`: the adapter, what was found, and the record of it."""

    digest: Digest
    comparison: Comparison
    record: Record


def compare(
    store: Store,
    digest: Digest,
    base: str,
    paths: Sequence[str],
    *,
    now: str,
    recipe: str = served.AUTO,
    workers: int | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Compared:
    """Compare, and keep the record. Comparing the same things twice keeps one record.

    Args:
        store: where the adapter lies; it is verified first.
        digest: the adapter.
        base: the base's safetensors file or directory.
        paths: what the engines were served: files, or directories of one iteration.
        now: the time, for the record.
        recipe: one of RECIPES, or `auto`.
        workers: threads; by default one for each core this process may use.
        device: `cpu` or `cuda`.
        progress: called with the bytes of base that were compared since the last call, and their total.

    Raises:
        NotFound, IntegrityError: the adapter or a path is missing, or the adapter is damaged.
        Refused: no such recipe, or torch is not installed.
        UnsupportedLora: nothing of base and adapter, or of base and an engine, matches by name.
        MalformedFile, StorageError: weights that cannot be read.
    """
    if recipe not in RECIPES:
        raise Refused("no such recipe", found=recipe, expected=" or ".join(RECIPES))
    require_torch()
    require_device(device)
    exports = seal.verify(store, digest).exports
    config = seal.read(store, digest, CONFIG)
    with seal.opened(store, digest, WEIGHTS) as file, open_weights(base) as weights, open_engines(paths) as engines:
        contents = read_adapter(file, config)
        comparison = served.compare(
            plan(contents, weights),
            weights,
            engines,
            recipe=recipe,
            workers=workers or len(os.sched_getaffinity(0)),
            device=device,
            all_b_zero=all(is_zero(pair.b.contiguous()) for pair in (*contents.lora.pairs, *contents.embeddings)),
            progress=progress,
        )
        doubts = tuple(_doubts(engines, exports, {stored.entry.dtype.name for stored in weights.tensors.values()}))
    comparison = replace(comparison, notes=(*doubts, *comparison.notes))
    predicate = _predicate(comparison, os.path.abspath(base), [os.path.abspath(path) for path in paths], now)
    known = store.records(digest, records.COMPARISON, pass_over)  # a damaged one is not known; `verify` names it
    record = next((each for each in known if _lasting(each.predicate) == _lasting(predicate)), None)
    if record is None:
        record = records.make(records.COMPARISON, digest, predicate)
        store.put_record(record)
    return Compared(digest, comparison, record)


def _doubts(engines: Sequence[Engine], exports: Sequence[Record], dtypes: Collection[str]) -> Iterator[str]:
    """What an engine says of itself that does not fit this adapter or this base."""
    bases = {record.predicate["base"].get(key) for record in exports for key in ("trained_on", "name")}
    for base in sorted(base for base in bases if isinstance(base, str) and is_quantised(base)):
        yield f"approximate: the adapter was trained on the quantised {base}, and this base is not that"
    iterations = {record.predicate["run"]["iteration"] for record in exports} - {None}
    for engine in engines:
        iteration, dtype = engine.stated.get("iteration"), engine.stated.get("dtype")
        if iterations and iteration is not None and iteration not in iterations:
            known = ", ".join(map(str, sorted(iterations)))
            yield f"{engine.name} states iteration {iteration}, the adapter is of iteration {known}: stale weights?"
        if dtype is not None and dtype not in dtypes:
            yield f"{engine.name} states type {dtype}, the base is {', '.join(sorted(dtypes))}"


def _predicate(comparison: Comparison, base: str, paths: Sequence[str], now: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "verdict": comparison.verdict.value,
        "passed": comparison.passed,
        "recipe": comparison.recipe,
        "engines": [_engine(result) for result in comparison.engines],
        "base_digest": comparison.base_digest.hex,
        "all_lora_b_zero": comparison.all_b_zero,
        "conditions": dict(comparison.conditions),
        "notes": list(comparison.notes),
        "base_path": jsontext.sayable(base),
        "served_paths": [jsontext.sayable(path) for path in paths],
        "compared_at": now,
        "versions": {"aorlta-registry": VERSION},
    }


def _engine(result: EngineResult) -> dict[str, Any]:
    return {
        "engine": result.engine,
        "verdict": result.verdict.value,
        "served_digest": result.served_digest.hex,
        "counts": {state.value: count for state, count in result.counts.items()},
        "ulp_histogram": {str(distance): count for distance, count in result.histogram.items()},
        "survival": None if result.survival is None else asdict(result.survival),
        "tensors": [asdict(tensor) | {"state": tensor.state.value} for tensor in result.notable[:_LISTED]],
        "stated": dict(result.stated),
    }


def _lasting(predicate: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in predicate.items() if key not in _VOLATILE}
