"""Comparisons and differences as the documents that `--json` prints and as the text that people read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from registry.cli.output import cell_text, line_text, table
from registry.core.comparison import Comparison, EngineResult, Verdict
from registry.core.difference import Difference
from registry.core.digest import Digest

_SHOWN = 8
_MEANING = {
    Verdict.IDENTICAL: "what was served is this adapter merged into this base, bit for bit",
    Verdict.WITHIN_ULP: "every element is within one unit in the last place of the merge",
    Verdict.VACUOUS: "the merge is the base, bit for bit, and so is what was served: nothing can be told",
    Verdict.INCOMPLETE: "not everything that the adapter changes could be compared",
    Verdict.PARTIAL: "some modules carry the adapter and some do not",
    Verdict.DIFFERENT: "what was served is neither the base nor this merge",
    Verdict.BASE_ONLY: "the adapter was not applied: what was served is the unmodified base",
}


def comparison_document(digest: Digest, comparison: Comparison, record: Digest) -> dict[str, Any]:
    """`compare --json`."""
    return {
        "digest": str(digest),
        "verdict": comparison.verdict.value,
        "passed": comparison.passed,
        "recipe": comparison.recipe,
        "conditions": dict(comparison.conditions),
        "base_digest": str(comparison.base_digest),
        "record": str(record),
        "notes": list(comparison.notes),
        "engines": [_engine_document(result) for result in comparison.engines],
    }


def _engine_document(result: EngineResult) -> dict[str, Any]:
    return {
        "engine": result.engine,
        "verdict": result.verdict.value,
        "served_digest": str(result.served_digest),
        "counts": {state.value: count for state, count in result.counts.items()},
        "ulp_histogram": {str(distance): count for distance, count in result.histogram.items()},
        "survival": None if result.survival is None else asdict(result.survival),
        "tensors": [asdict(tensor) | {"state": tensor.state.value} for tensor in result.notable],
        "stated": dict(result.stated),
    }


def comparison_text(comparison: Comparison) -> str:
    """`compare` for people."""
    conditions = comparison.conditions
    rows = [
        ("verdict", f"{comparison.verdict}: {_MEANING[comparison.verdict]}"),
        (
            "recipe",
            (
                f"{comparison.recipe}, on {conditions['device']} with torch {conditions['torch']}, "
                f"{conditions['threads']} thread a tensor"
            ),
        ),
    ]
    for result in comparison.engines:
        rows += [(result.engine, line) for line in _engine_lines(result)]
    rows += [("note", note) for note in comparison.notes]
    return _aligned(rows)


def failures(comparison: Comparison) -> Iterator[str]:
    """A line for each engine that did not have the adapter."""
    for result in comparison.engines:
        passed = result.verdict in {Verdict.IDENTICAL, Verdict.WITHIN_ULP}
        if not passed and not (result.verdict is Verdict.VACUOUS and comparison.all_b_zero):
            yield f"{result.engine}: {result.verdict}: {_MEANING[result.verdict]}"


def _engine_lines(result: EngineResult) -> Iterator[str]:
    states = ", ".join(f"{count} {state}" for state, count in result.counts.items())
    yield f"{result.verdict} ({states})"
    if result.survival is not None:
        yield (
            f"{result.survival.projected:.2%} of the update arrived; "
            f"{result.survival.rounded_away:.2%} of its elements were rounded away"
        )
    if result.verdict is Verdict.BASE_ONLY:
        return  # every targeted tensor is the same story
    if result.histogram:
        apart = ", ".join(f"<= {distance}: {count}" for distance, count in result.histogram.items())
        yield f"elements apart from the merge, by ULP: {apart}"
    for tensor in result.notable[:_SHOWN]:
        distance = (
            "" if tensor.max_ulp is None else f", {tensor.differing} of {tensor.elements}, up to {tensor.max_ulp} ULP"
        )
        why = "" if tensor.why is None else f" ({tensor.why})"
        yield f"  {tensor.state}: {tensor.name}{distance}{why}"
    if len(result.notable) > _SHOWN:
        yield f"  and {len(result.notable) - _SHOWN} more"


def difference_document(first: Digest, second: Digest, difference: Difference) -> dict[str, Any]:
    """`diff --json`."""
    return {
        "first": str(first),
        "second": str(second),
        "likeness": difference.likeness.value,
        "relative": difference.relative,
        "cosine": difference.cosine,
        "settings": {key: list(values) for key, values in difference.settings.items()},
        "only_first": list(difference.only_first),
        "only_second": list(difference.only_second),
        "modules": [asdict(module) for module in difference.modules],
    }


def difference_text(difference: Difference) -> str:
    """`diff` for people: the whole, then the modules that changed most."""
    rows = [
        ("likeness", difference.likeness.value),
        ("relative", f"{_number(difference.relative)} of the first update's norm"),
        ("cosine", _number(difference.cosine)),
        *(("setting", f"{key}: {first} -> {second}") for key, (first, second) in difference.settings.items()),
        *(("only first", module) for module in difference.only_first),
        *(("only second", module) for module in difference.only_second),
    ]
    modules = table(
        ("MODULE", "RELATIVE", "COSINE", "NORM 1", "NORM 2", "ULP A", "ULP B"),
        (
            (
                each.module,
                _number(each.relative),
                _number(each.cosine),
                *(_number(norm) for norm in each.norms),
                *("-" if ulp is None else ulp for ulp in (each.ulp_a, each.ulp_b)),
            )
            for each in difference.modules
        ),
    )
    return f"{_aligned(rows)}\n\n{modules}"


def _aligned(rows: list[tuple[str, str]]) -> str:
    """Names in a column of their own, each said once for the lines that share it."""
    names = [cell_text(name) for name, _ in rows]
    width = max(map(len, names))
    before = ["", *names]
    return "\n".join(
        f"{'' if name == previous else name:<{width}}  {line_text(text)}"
        for name, previous, (_, text) in zip(names, before, rows, strict=False)
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
