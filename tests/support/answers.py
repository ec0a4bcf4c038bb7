"""Everything that a registry answers from its index, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from registry import Digest, Registry, RegistryError
from registry.core.summary import AdapterSummary
from registry.store import LocalStore


def answers(home: Path) -> dict[str, Any]:
    """Every query, with every argument that has an answer. An error is an answer too."""
    registry = Registry(home)
    listed = registry.newest(100_000)
    runs = {(export.run, export.iteration) for adapter in listed for export in adapter.exports if export.run}
    wanted = {f"{run}@{iteration}" for run, iteration in runs} | {f"{run}@latest" for run, _ in runs}
    names = {move.name for alias in _alias_names(home) for move in registry.alias_history(alias)}
    return {
        "list": listed,
        "found": {str(asked): [each.digest for each in registry.find(**asked)] for asked in _searches(listed)},
        "show": {str(digest): _answer(registry.show, digest.hex) for digest in _known(home)},
        "runs": {reference: _answer(registry.resolve, reference) for reference in sorted(wanted)},
        "aliases": registry.aliases(),
        "named": {name: _answer(registry.resolve, name) for name in sorted(names)},
        "score runs": registry.score_runs(limit=100_000),
        "scored": {str(each.digest): _answer(registry.score_runs, each.digest.hex) for each in listed},
        "run scores": {
            (run, metric): _answer(partial(registry.run_scores, run), metric)
            for run in sorted({run for run, _ in runs})
            for metric in sorted({metric for adapter in listed for metric in adapter.scores})
        },
        "lineage": {
            target: _answer(registry.lineage, target)
            for target in sorted({each for adapter in listed for each in _parts(adapter)})
        },
        "history": {name: registry.alias_history(name) for name in sorted(names)},
    }


def _known(home: Path) -> set[Digest]:
    """Adapters that are stored, or that something is recorded of: of those that were removed, who did it is told."""
    store = LocalStore(str(home))
    return {*store.digests(), *store.subjects()}


def _parts(adapter: AdapterSummary) -> Iterator[str]:
    """An adapter, its checkpoints and its runs, as lineage can be asked of them."""
    yield f"adapter:{adapter.digest.hex}"
    for export in adapter.exports:
        yield f"checkpoint:{export.checkpoint.hex}"
        if export.run:
            yield f"run:{export.run}"


def _searches(listed: list[AdapterSummary]) -> list[dict[str, Any]]:
    """Every criterion with every value that some adapter has, and every order."""
    exports = [export for adapter in listed for export in adapter.exports]
    wanted: list[tuple[str, Iterable[Any]]] = [
        ("run", {export.run for export in exports}),
        ("iterations", {export.iteration for export in exports}),
        ("checkpoint", {str(export.checkpoint) for export in exports}),
        ("base", {export.base for export in exports}),
        ("tensors", {str(adapter.tensor_digest) for adapter in listed}),
        ("r", {adapter.r for adapter in listed}),
        ("alpha", {adapter.lora_alpha for adapter in listed}),
        ("verdict", {adapter.verdict or "none" for adapter in listed}),
        ("alias", {name for adapter in listed for name in adapter.aliases}),
        ("since", {adapter.first_exported_at for adapter in listed}),
        ("until", {adapter.first_exported_at for adapter in listed}),
    ]
    scores = {(name, value) for adapter in listed for name, value in adapter.scores.items()}
    orders = {"oldest", "iteration"} | {f"score:{name}" for name, _ in scores}
    return [
        *({option: value} for option, values in wanted for value in sorted(set(values) - {None})),
        *({"scores": [f"{name}>={value!r}"]} for name, value in sorted(scores)),
        *({"sort": order} for order in sorted(orders)),
    ]


def _alias_names(home: Path) -> set[str]:
    store = LocalStore(str(home))
    return {
        record.predicate["alias"]
        for subject in store.subjects()
        for record in store.records(subject, "alias", lambda _: None)
    }


def _answer(question: Any, argument: str) -> Any:
    try:
        return question(argument)
    except RegistryError as error:
        return str(error)


def lose_index(home: Path) -> None:
    """Delete the index's files."""
    for file in home.glob("index.sqlite*"):
        file.unlink()
