"""Score runs and what stands for a run's adapters: in order, never from partial ones, and without reading a table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from registry.core.comparison import Verdict
from registry.core.errors import MalformedFile
from registry.core.records import Record
from registry.core.summary import ScorePoint
from registry.index import Index
from registry.index.summaries import score_run_of
from tests.support.values import digest_of

Make = Callable[..., Record]


def test_score_runs_are_listed_newest_first_of_all_or_of_one_adapter(
    index: Index, exported: Make, scored: Make
) -> None:
    made = [scored("a", at=2, accuracy=0.5), scored("b", at=3, status="stopped"), scored("a", at=1, loss=2)]
    twins = [scored("a", at=5, accuracy=each) for each in (0.1, 0.2, 0.3, 0.4, 0.5)]
    index.add([exported("a"), exported("b", checkpoint="other"), *made, *twins])
    tied = sorted((each.digest for each in twins), reverse=True)
    assert [each.record for each in index.score_runs(None, 9)] == [
        *tied,
        made[1].digest,
        made[0].digest,
        made[2].digest,
    ]
    assert [each.record for each in index.score_runs(None, 2)] == tied[:2]
    assert [each.record for each in index.score_runs(digest_of("a"), 5)] == tied
    assert [each.record for each in index.score_runs(digest_of("b"), 9)] == [made[1].digest]
    assert index.score_runs(digest_of("unknown"), 9) == []
    assert index.score_runs(digest_of("a"), 9)[5].scores == (("accuracy", 0.5),)


def test_a_record_answers_as_its_row_in_the_index_does(index: Index, exported: Make, scored: Make) -> None:
    for at, record in enumerate((scored(at=1, b=2, a=0.5), scored(at=2, status="stopped"))):
        index.add([exported(), record])
        assert index.score_runs(None, at + 1)[0] == score_run_of(record)
    with pytest.raises(MalformedFile, match="status"):
        score_run_of(scored(status="running"))


def test_the_points_of_a_run_are_the_scores_that_stand_by_iteration(
    index: Index, exported: Make, scored: Make, compared: Make
) -> None:
    index.add(
        [
            exported("a", id="r", iteration=2, checkpoint="a"),
            exported("a", id="r", iteration=2, checkpoint="the same again"),
            exported("a", id="r", iteration=7, checkpoint="later"),
            exported("b", id="r", iteration=1, checkpoint="b"),
            exported("c", id="r", iteration=3, checkpoint="c"),
            exported("d", id="r", iteration=None, checkpoint="d"),
            exported("e", id="other", iteration=1, checkpoint="e"),
            compared("b", vllm="base-only"),
            scored("a", at=1, accuracy=0.1),
            scored("a", at=2, accuracy=0.2),
            scored("a", at=3, status="stopped", accuracy=0.9),
            scored("b", at=1, accuracy=0, loss=1),
            scored("c", at=1, status="stopped", accuracy=0.9, speed=1),
            scored("d", at=1, accuracy=0.4),
            scored("e", at=1, accuracy=0.5, other=1),
        ]
    )
    assert index.run_scores("r", "accuracy") == [
        ScorePoint(None, digest_of("d"), 0.4, None),
        ScorePoint(1, digest_of("b"), 0, Verdict.BASE_ONLY),
        ScorePoint(2, digest_of("a"), 0.2, None),
        ScorePoint(7, digest_of("a"), 0.2, None),
    ]
    assert [each.adapter for each in index.run_scores("r", "loss")] == [digest_of("b")]
    assert index.run_scores("r", "speed") == index.run_scores("r", "none") == index.run_scores("none", "loss") == []
    assert index.run_metrics("r", 9) == ["accuracy", "loss"]
    assert index.run_metrics("r", 1) == ["accuracy"]
    assert index.run_metrics("none", 9) is None


def test_what_is_added_under_the_lock_counts_when_it_ends_or_not_at_all(
    index: Index, exported: Make, scored: Make
) -> None:
    with index.adding() as add:
        add([exported(), scored(accuracy=1)])
    assert len(index.score_runs(None, 9)) == 1

    def fail() -> None:
        with index.adding() as add:
            add([scored(at=2, accuracy=1)])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(index.score_runs(None, 9)) == 1


def test_every_question_about_scores_is_answered_from_an_index(
    index: Index, database: Path, exported: Make, scored: Make
) -> None:
    """Good at a million adapters, for the planner that has seen few of them and knows no statistics."""
    statements: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        statements.append((statement, parameters[0] if many else parameters))

    index.add([exported("a", id="r")])
    event.listen(Engine, "before_cursor_execute", note)
    try:
        index.score_runs(None, 2)
        index.score_runs(digest_of("a"), 2)
        index.run_scores("r", "accuracy")
        index.run_metrics("r", 2)
        with index.adding() as add:
            add([scored("a", accuracy=0.5), scored("a", at=2, status="stopped", loss=1)])
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    planned = [each for each in statements if each[0].split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT")]
    assert len(planned) > 10
    with sqlite3.connect(database) as connection:
        plans = [
            [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            for statement, parameters in planned
        ]
    connection.close()
    scans = {step for plan in plans for step in plan if step.startswith("SCAN")}
    derived = {step for step in scans if "subquery" in step or "anon_" in step}
    assert scans - derived - {"SCAN sqlite_master", "SCAN CONSTANT ROW"} == {
        "SCAN score_runs USING INDEX ix_score_runs_scored_at_record"
    }
    newest = next(plan for plan in plans if "SCAN score_runs USING INDEX ix_score_runs_scored_at_record" in plan)
    assert not any("TEMP B-TREE" in step for step in newest), "read in the index's order, it stops at the limit"
    steps = {step for plan in plans for step in plan}
    assert "SEARCH score_runs USING INDEX ix_score_runs_adapter_id (adapter_id=?)" in steps
    assert "SEARCH exports USING INDEX ix_exports_run_id_iteration (run_id=?)" in steps
    value = "ix_scores_adapter_id_metric_id_stands_value (adapter_id=? AND metric_id=? AND stands=?)"
    assert f"SEARCH scores USING COVERING INDEX {value}" in steps
    assert not any("ix_scores_metric_id_stands" in step for step in steps), "that is every adapter's"
