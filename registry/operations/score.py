"""Score: the result of a score run, linked to the adapter it used by a record. Doing it again changes nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.core import jsontext, records
from registry.core.digest import Digest
from registry.core.errors import NotFound
from registry.core.records import Record
from registry.core.summary import ScorePoint, ScoreRunSummary
from registry.operations.score_files import FileRead, ScoreFiles
from registry.operations.seal import announced, read_seal
from registry.store import Store, pass_over

if TYPE_CHECKING:
    from registry.index import Index

FORMAT = 1
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of adding a score run.

    Attributes:
        run: the score run, as the registry answers it.
        new: whether it was recorded just now.
        left_out: what stands among its scores and is no number that can be kept, a clause each.
    """

    run: ScoreRunSummary
    new: bool
    left_out: tuple[str, ...]


def score(
    store: Store,
    index: Index,
    adapter: Digest,
    files: ScoreFiles,
    named_by: Collection[str],
    *,
    now: str,
    who: str,
    derive: bool,
) -> Scored:
    """Record a score run of an adapter, unless one with this very result is recorded.

    The index's lock is held from the look to the record, so that of several who add the same one does. The look is at
    what was announced too: where its writer was killed, the work is finished here.

    Args:
        store: where the adapter lies.
        index: holds the lock.
        adapter: which one the score run used.
        files: what the score run's files say.
        named_by: who says that it used this adapter.
        now: the time, for the record.
        who: does this, for the record.
        derive: False leaves the record announced, for an index that is still to be made anew.

    Raises:
        NotFound, IntegrityError: the adapter is missing, or it or a record of its scores is damaged.
        StorageError.
    """
    from registry.index.summaries import score_run_of  # noqa: PLC0415  with SQLAlchemy

    exports = read_seal(store, adapter).exports
    with index.adding() as add:
        known = _known(store, adapter, files.result.digest)
        record = known or records.make(records.SCORE, adapter, _predicate(files, named_by, now, who))
        answer = score_run_of(record)
        store.put_record(record)
        if derive:
            add([*exports, record])
    if derive:
        for each in (*exports, record):
            store.settle(each)
    return Scored(answer, known is None, files.left_out)


def points(index: Index | None, run: str, metric: str) -> list[ScorePoint]:
    """The scores of one metric that stand for the adapters a run exported: a point for each of its iterations.

    Raises:
        NotFound: no such run is known, or nothing of this metric of its adapters.
    """
    found = [] if index is None else index.run_scores(run, metric)
    if found:
        return found
    known = None if index is None else index.run_metrics(run, _LISTED + 1)
    if known is None:
        raise NotFound("no adapter of this run is known", key=run)
    listed = ", ".join(known[:_LISTED]) + (", ..." if len(known) > _LISTED else "")
    raise NotFound(
        "no score run of its adapters that completed has this metric", key=f"{run}: {metric}", found=listed or "none"
    )


def _known(store: Store, adapter: Digest, result: Digest) -> Record | None:
    """The first record of this result, among those that are kept and those that are announced. A damaged one is not
    known, so that the result can be recorded again; `verify` names it."""
    for record in (*store.records(adapter, records.SCORE, pass_over), *announced(store, adapter, records.SCORE)):
        match record.predicate:
            case {"score_run": {"result": {"sha256": result.hex}}}:
                return record
    return None


def _predicate(files: ScoreFiles, named_by: Collection[str], now: str, who: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "score_run": {
            "name": files.name,
            "path": jsontext.sayable(files.directory),
            "result": _identity(files.result),
            "config": None if files.config is None else _identity(files.config),
        },
        "status": files.status.value,
        "stop": None if files.stop is None else dict(files.stop),
        "scores": dict(files.scores),
        "adapter_named_by": list(named_by),
        "scored_at": now,
        "scored_by": who,
    }


def _identity(file: FileRead) -> dict[str, Any]:
    return {"sha256": file.digest.hex, "bytes": file.size}
