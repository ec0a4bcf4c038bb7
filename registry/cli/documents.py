"""Results as the documents that `--json` prints and as the text that people read. Their shapes are documented."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from registry.cli.output import error_document, line_text, size, table
from registry.core.engines import VLLM_MAX_RANK
from registry.core.summary import AdapterSummary, ComparisonSummary, ExportSummary, ScoreRunSummary, Status

if TYPE_CHECKING:
    from registry.core.engines import Fitness
    from registry.operations.add import Added
    from registry.operations.arrivals import Arrival

_NONE = "-"
_SHOWN = 6  # scores on one line


def added_document(path: str, added: Added) -> dict[str, Any]:
    """One adapter of `add --json`."""
    run = added.manifest["run"]
    return {
        "checkpoint": path,
        "checkpoint_digest": f"sha256:{added.manifest['checkpoint']['sha256']}",
        "digest": str(added.digest),
        "outcome": added.outcome.value,
        "new_export": added.new_export,
        "damage": added.damage,
        "run": run["id"],
        "iteration": run["iteration"],
        "verdict": None if added.comparison is None else added.comparison.verdict.value,
        "warnings": added.manifest["warnings"],
    }


def skipped_document(arrival: Arrival) -> dict[str, Any]:
    """One checkpoint of a run that was not added, of `add --json`."""
    return {
        "checkpoint": arrival.checkpoint,
        "step": arrival.step,
        "state": arrival.state.value,
        "digest": arrival.digest and str(arrival.digest),
        "reason": arrival.reason,
    }


def arrival_document(arrival: Arrival) -> dict[str, Any]:
    """One line of `watch --json`."""
    added, error = arrival.added, arrival.error
    return {
        **skipped_document(arrival),
        "added": None if added is None else added_document(arrival.checkpoint, added),
        "error": None if error is None else error_document(error),
    }


def added_text(path: str, added: Added) -> str:
    """What `add` says to people about one checkpoint, on stderr."""
    run, lora = added.manifest["run"], added.manifest["lora"]
    what = added.outcome.value
    if added.outcome == "already present" and added.new_export:
        what = "already present, from another checkpoint or run; the new export is recorded"
    where = f"run {run['id'] or '?'} iteration {_or_none(run['iteration'])}"
    return f"{what}: {where}, r {lora['r']}, alpha {lora['lora_alpha']} <- {path}"


def adapter_document(adapter: AdapterSummary) -> dict[str, Any]:
    """One adapter of `show --json` and `list --json`."""
    return {
        "digest": str(adapter.digest),
        "tensor_digest": str(adapter.tensor_digest),
        "bytes": adapter.bytes,
        "modules": adapter.modules,
        "r": adapter.r,
        "lora_alpha": adapter.lora_alpha,
        "use_rslora": adapter.use_rslora,
        "first_exported_at": adapter.first_exported_at,
        "removed_at": adapter.removed_at,
        "same_tensors": [str(digest) for digest in adapter.same_tensors],
        "aliases": list(adapter.aliases),
        "exports": [_export_document(export) for export in adapter.exports],
        "verdict": adapter.verdict,
        "comparisons": [_comparison_document(each) for each in adapter.comparisons],
        "scores": adapter.scores,
        "score_runs": [score_run_document(each) for each in adapter.score_runs],
    }


def shown_document(adapter: AdapterSummary, engines: Sequence[Fitness]) -> dict[str, Any]:
    """`show --json`: the adapter, and what engines make of it; none where its files are gone or damaged."""
    return adapter_document(adapter) | {
        "engines": {
            fitness.engine.value: {
                "max_lora_rank": fitness.max_lora_rank,
                "unfit": [asdict(each) | {"harm": each.harm.value} for each in fitness.unfit],
            }
            for fitness in engines
        }
    }


def shown_text(adapter: AdapterSummary, engines: Sequence[Fitness]) -> str:
    """`show` for people: of engines, only what speaks against one."""
    doubts = [("engine", f"not for {each.engine}: {each.reasons()}") for each in engines if each.unfit]
    rank = max((each.max_lora_rank for each in engines), default=0)
    if rank > VLLM_MAX_RANK:
        doubts.append(("engine", f"vllm must be started with --max-lora-rank {rank} or more"))
    return "\n".join([adapter_text(adapter), *_rows(doubts)])


def score_run_document(run: ScoreRunSummary) -> dict[str, Any]:
    """One score run of `show --json` and `score list --json`."""
    return {
        "digest": str(run.adapter),
        "name": run.name,
        "status": run.status.value,
        "reason": run.reason,
        "scores": dict(run.scores),
        "path": run.path,
        "result_digest": str(run.result_digest),
        "config_digest": run.config_digest and str(run.config_digest),
        "scored_at": run.scored_at,
        "scored_by": run.scored_by,
        "record": str(run.record),
    }


def _export_document(export: ExportSummary) -> dict[str, Any]:
    return {
        "checkpoint_digest": str(export.checkpoint),
        "run": export.run,
        "iteration": export.iteration,
        "base": export.base,
        "base_revision": export.base_revision,
        "path": export.path,
        "reader": export.reader,
        "exported_at": export.exported_at,
        "warm_start": export.warm_start and str(export.warm_start),
        "resumed_from": export.resumed_from and str(export.resumed_from),
        "record": str(export.record),
    }


def _comparison_document(comparison: ComparisonSummary) -> dict[str, Any]:
    return asdict(comparison) | {
        "verdict": comparison.verdict.value,
        "base_digest": str(comparison.base_digest),
        "served_digest": str(comparison.served_digest),
        "record": str(comparison.record),
    }


def adapter_text(adapter: AdapterSummary) -> str:
    """`show` for people."""
    scale = "alpha/sqrt(r)" if adapter.use_rslora else "alpha/r"
    rows: list[tuple[str, object]] = [
        ("adapter", adapter.digest),
        ("tensors", adapter.tensor_digest),
        *(("  same as", digest) for digest in adapter.same_tensors),
        *(("alias", name) for name in adapter.aliases),
        ("lora", f"r {adapter.r}, alpha {adapter.lora_alpha}, scale {scale}"),
        ("size", f"{size(adapter.bytes)} in {adapter.modules} modules"),
    ]
    if adapter.removed_at is not None:
        rows.append(("removed", adapter.removed_at))
    for export in adapter.exports:
        base = f"{export.base} @ {export.base_revision}" if export.base_revision else export.base
        rows += [
            ("export", f"{export.exported_at} by the {export.reader} reader"),
            ("  run", f"{_or_none(export.run)}, iteration {_or_none(export.iteration)}"),
            ("  base", _or_none(base)),
            *((("  start", f"adapter {export.warm_start}"),) if export.warm_start else ()),
            *((("  resumed", f"checkpoint {export.resumed_from}"),) if export.resumed_from else ()),
            ("  checkpoint", export.checkpoint),
            ("  from", export.path),
        ]
    for comparison in adapter.comparisons:
        rows += _comparison_rows(comparison)
    for run in adapter.score_runs:
        rows += _score_run_rows(run)
    return "\n".join(_rows(rows))


def _rows(rows: Iterable[tuple[str, object]]) -> Iterator[str]:
    return (f"{name:<12}  {line_text(value)}" for name, value in rows)


def _comparison_rows(comparison: ComparisonSummary) -> list[tuple[str, object]]:
    rounding = f"{comparison.rounding} rounding, " if comparison.rounding else ""
    rows: list[tuple[str, object]] = [
        ("served", f"{comparison.verdict}: {comparison.engine}, {comparison.compared_at}"),
        (
            "  merge",
            (
                f"{comparison.recipe}, {rounding}torch {comparison.torch} on {comparison.device}, "
                f"{comparison.threads} thread a tensor"
            ),
        ),
    ]
    if comparison.surviving is not None and comparison.rounded_away is not None:
        left = f"{comparison.surviving:.2%} of it arrived, {comparison.rounded_away:.2%} of its elements rounded away"
        rows.append(("  update", left))
    return rows


def _score_run_rows(run: ScoreRunSummary) -> list[tuple[str, object]]:
    return [
        ("score run", f"{f'{run.name}, ' if run.name else ''}{run.scored_at}{stop_text(run)}"),
        *(
            ("  partial" if run.status is Status.STOPPED else "  score", f"{name} {value:g}")
            for name, value in run.scores
        ),
        ("  from", run.path),
    ]


def stop_text(run: ScoreRunSummary) -> str:
    """What is said beside a score run that stopped early."""
    return f", stopped early: {run.reason or 'no reason stated'}" if run.status is Status.STOPPED else ""


def scores_text(run: ScoreRunSummary) -> str:
    """The scores of a score run on one line, the first few of many."""
    shown = [f"{name} {value:g}" for name, value in run.scores[:_SHOWN]]
    more = [f"{len(run.scores) - _SHOWN} more"] if len(run.scores) > _SHOWN else []
    return f"{'partial: ' if run.status is Status.STOPPED else ''}{', '.join([*shown, *more]) or 'no scores'}"


def adapters_text(adapters: list[AdapterSummary], metrics: Iterable[str] = ()) -> str:
    """`list` and `find` for people: one row per adapter, described by its first export; its scores of `metrics`."""
    measured = tuple(dict.fromkeys(metrics))
    header = ("DIGEST", "RUN", "ITER", "R", "ALPHA", "MODULES", "SIZE", "BASE", "EXPORTED", "EXPORTS", "VERDICT")
    return table((*header, *measured), (_row(adapter, measured) for adapter in adapters))


def _row(adapter: AdapterSummary, metrics: tuple[str, ...]) -> tuple[object, ...]:
    first, scores = adapter.exports[0], adapter.scores if metrics else {}
    return (
        adapter.digest.short,
        _or_none(first.run),
        _or_none(first.iteration),
        adapter.r,
        adapter.lora_alpha,
        adapter.modules,
        size(adapter.bytes),
        _or_none(first.base),
        adapter.first_exported_at[:19] + "Z",
        len(adapter.exports),
        _or_none(adapter.verdict),
        *(f"{scores[metric]:g}" if metric in scores else _NONE for metric in metrics),
    )


def _or_none(value: object) -> object:
    return _NONE if value is None else value
