"""Everything that a registry answers from its index, as one value."""

from __future__ import annotations

from collections.abc import Iterator
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
