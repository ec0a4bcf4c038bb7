"""The nodes of a lineage from rows: what is told of each base, run, checkpoint, adapter, comparison and score run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row

from registry.core.digest import ALGORITHM
from registry.core.lineage import Edge, Kind, Link, Node, digest_key, named_key
from registry.core.model import number
from registry.index import kinship

Facts = dict[str, Any]


class Drawn:
    """Nodes and edges, gathered in any order; adding one again changes nothing."""

    def __init__(self) -> None:
        self.edges: set[Edge] = set()
        self._nodes: dict[str, Node] = {}
        self._facts: dict[str, Facts] = {}
        self._adapters: dict[str, str] = {}  # those that are known here: digest to key

    def base(self, stretch: Row[Any]) -> str:
        """Add the base of a stretch; returns its key, as all of these do."""
        key = named_key(Kind.BASE, stretch.base_name, stretch.base_revision)
        return self._add(Kind.BASE, key, {"name": stretch.base_name, "revision": stretch.base_revision or None})

    def run(self, key: str, stretch: Row[Any], *, same_tensors: bool, own: bool, own_iteration: int | None) -> str:
        """Add a run, as one stretch of it.

        Args:
            key: of its node.
            stretch: the row of it.
            same_tensors: its start is stated by the digest of tensors, which several adapters can have.
            own: it was resumed from a checkpoint of its own.
            own_iteration: the iteration of that one, if that is known.
        """
        facts: Facts = {
            "name": stretch.run,
            "base": stretch.base_name or None,
            "base_revision": stretch.base_revision or None,
            "warm_start": _full(stretch.warm_start),
            "same_tensors": same_tensors,
            "resumed_from": _full(stretch.resumed_from),
            "resumed_from_own": own,
            "resumed_from_iteration": own_iteration,
        }
        return self._add(Kind.RUN, key, facts)

    def checkpoint(self, digest: str, *, known: bool = True) -> str:
        """Add a checkpoint, which may be one that a run was resumed from and that is not known here."""
        key = digest_key(Kind.CHECKPOINT, digest)
        if key in self._nodes:
            return key
        facts: Facts = {
            "digest": _full(digest),
            "known": known,
            "iteration": None,
            "unchanged": [],
        }
        return self._add(Kind.CHECKPOINT, key, facts)

    def adapter(self, row: Row[Any]) -> str:
        """Add an adapter that is known here."""
        key = digest_key(Kind.ADAPTER, row.adapter)
        if key in self._nodes:
            return key
        facts: Facts = {
            "digest": _full(row.adapter),
            "known": True,
            "tensor_digest": _full(row.tensor_digest),
            "r": row.r,
            "lora_alpha": number(row.lora_alpha),
            "verdict": row.verdict,
            "removed_at": row.removed_at,
            "aliases": [],
        }
        self._adapters[row.adapter] = key
        return self._add(Kind.ADAPTER, key, facts)

    def unknown_adapter(self, digest: str) -> str:
        """Add an adapter that a run says it started from, by digest or tensor digest."""
        unknown = dict.fromkeys(("tensor_digest", "r", "lora_alpha", "verdict", "removed_at"))
        facts: Facts = {"digest": _full(digest), "known": False, **unknown, "aliases": []}
        return self._add(Kind.ADAPTER, digest_key(Kind.ADAPTER, digest), facts)

    def saved(self, row: Row[Any], run: str | None) -> str:
        """Add the checkpoint of an export with its iteration, and, if there is one, as saved by the run of this key."""
        key = self.checkpoint(row.checkpoint)
        facts = self._facts[key]
        if row.iteration is not None:
            facts["iteration"] = row.iteration if facts["iteration"] is None else min(row.iteration, facts["iteration"])
        if run is not None:
            self.edges.add(Edge(run, key, Link.SAVED))
        return key

    def exported(self, row: Row[Any]) -> str:
        """Add the adapter of an export, as exported from its checkpoint."""
        key = self.adapter(row)
        self.edges.add(Edge(self.checkpoint(row.checkpoint), key, Link.EXPORTED))
        return key

    def unchanged(self, row: Row[Any]) -> None:
        """Say that the checkpoint of an export holds the adapter that its run started from."""
        facts = self._facts[self.checkpoint(row.checkpoint)]
        facts["unchanged"] = sorted({*facts["unchanged"], _full(row.adapter)})

    def digests(self, *kinds: Kind) -> set[str]:
        """The hex digests of the nodes of these kinds."""
        wanted = (node for node in self._nodes.values() if node.kind in kinds)
        return {node.facts["digest"].removeprefix(f"{ALGORITHM}:") for node in wanted}

    def name(self, connection: Connection) -> None:
        """Add to the adapters the aliases that stand for them."""
        for digest, alias in sorted(tuple(row) for row in kinship.aliases(connection, self._adapters)):
            self._facts[self._adapters[digest]]["aliases"].append(alias)

    def describe(self, connection: Connection, adapter_ids: Collection[int]) -> None:
        """Add the comparisons and score runs of adapters."""
        for row in kinship.compared(connection, adapter_ids):
            facts: Facts = {
                "engine": row.engine,
                "verdict": row.verdict,
                "recipe": row.recipe,
                "device": row.device,
                "surviving": row.surviving,
                "compared_at": row.compared_at,
                "record": _full(row.record),
            }
            key = self._add(Kind.COMPARISON, f"{digest_key(Kind.COMPARISON, row.record)}:{row.engine}", facts)
            self.edges.add(Edge(self._adapters[row.adapter], key, Link.COMPARED))
        rows = kinship.scored(connection, adapter_ids)
        values = kinship.values_of(connection, [row.id for row in rows])
        for row in rows:
            facts = {
                "name": row.name,
                "status": row.status,
                "reason": row.reason,
                "scores": dict(sorted(values[row.id].items())),
                "path": row.path,
                "scored_at": row.scored_at,
                "record": _full(row.record),
            }
            key = self._add(Kind.SCORE, digest_key(Kind.SCORE, row.record), facts)
            self.edges.add(Edge(self._adapters[row.adapter], key, Link.SCORED))

    def nodes(self) -> list[Node]:
        """All nodes."""
        return list(self._nodes.values())

    def _add(self, kind: Kind, key: str, facts: Facts) -> str:
        if key not in self._nodes:
            self._facts[key] = facts
            self._nodes[key] = Node(kind, key, facts)
        return key


def _full(digest: str) -> str | None:
    return f"{ALGORITHM}:{digest}" if digest else None
