"""Stretches of runs as a walk over lineage meets them: what each is, and what it started from, if that is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row

from registry.core.lineage import Kind, named_key
from registry.index import kinship


class Stretches:
    """The stretches met so far, by id.

    Attributes:
        rows: of each, its row of `stretches`.
        keys: of each, that of the node that stands for it, if its run has a name.
        starts: of each, the adapters that it started from, by id. Several where only their tensors are stated.
        resumes: of those that were resumed from a checkpoint of another run, its row.
        own: of those that were resumed from a checkpoint of their own run, the iteration of that one.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.rows: dict[int, Row[Any]] = {}
        self.keys: dict[int, str] = {}
        self.starts: dict[int, Mapping[int, Row[Any]]] = {}
        self.resumes: dict[int, Row[Any]] = {}
        self.own: dict[int, int | None] = {}

    def meet(self, stretch_ids: Iterable[int]) -> None:
        """Find out what these are, and what they started from."""
        rows = list(kinship.stretches_called(self._connection, set(stretch_ids) - self.rows.keys()))
        starts = starts_of(self._connection, (row.warm_start for row in rows if row.warm_start))
        resumable = resumable_of(self._connection, (row.resumed_from for row in rows if row.resumed_from))
        for row in rows:
            self.rows[row.id] = row
            self.keys[row.id] = key_of(row)
            self.starts[row.id] = starts.get(row.warm_start, {})
            runs = resumable.get(row.resumed_from, {})
            if row.run and row.run in runs:
                self.own[row.id] = runs[row.run].iteration
            elif runs:
                self.resumes[row.id] = next(iter(runs.values()))

    def is_unchanged(self, export: Row[Any]) -> bool:
        """Whether an export gave what its run started from: that adapter did not come of the run."""
        return export.adapter_id in self.starts[export.stretch_id]


def key_of(stretch: Row[Any]) -> str:
    """The key of the node of a row of `stretches`."""
    said = (stretch.base_name, stretch.base_revision, stretch.warm_start, stretch.resumed_from)
    return named_key(Kind.RUN, stretch.run, *said)


def starts_of(connection: Connection, stated: Iterable[str]) -> dict[str, dict[int, Row[Any]]]:
    """Of each digest or tensor digest that a run says it started from, the adapters that can be meant, by id.

    One that only came of runs that say they started from it is meant only where there is no other.
    """
    found: dict[str, list[Row[Any]]] = defaultdict(list)
    for each, row in kinship.matching(connection, set(stated)):
        found[each].append(row)
    return {
        each: {row.adapter_id: row for row in [row for row in rows if row.elsewhere] or rows}
        for each, rows in found.items()
    }


def resumable_of(connection: Connection, stated: Iterable[str]) -> dict[str, dict[str, Row[Any]]]:
    """Of each checkpoint that a run says it was resumed from, its row for each run that has it."""
    found: dict[str, dict[str, Row[Any]]] = defaultdict(dict)
    for row in kinship.resumable(connection, set(stated)):
        found[row.digest][row.run] = row
    return found
