"""The index: rows derived from records, once each, and every question answered from an index of the database."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from registry.core import records
from registry.core.comparison import Verdict
from registry.core.errors import MalformedFile, StorageError
from registry.core.records import Record
from registry.core.refs import AliasName, RunIteration
from registry.core.summary import AdapterSummary, ComparisonSummary, ExportSummary
from registry.index import Database, Index
from tests.support.values import digest_of

Export = Callable[..., Record]
Compared = Callable[..., Record]
Moved = Callable[..., Record]
Scored = Callable[..., Record]


def rows(database: Path) -> dict[str, int]:
    with sqlite3.connect(database) as connection:
        counts = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("adapters", "checkpoints", "runs", "exports")
        }
    connection.close()
    return counts


def found(index: Index, adapter: str) -> AdapterSummary:
    summary = index.adapter(digest_of(adapter))
    assert summary is not None
    return summary


def test_an_adapter_is_answered_with_every_fact_of_its_export(index: Index, exported: Export) -> None:
    record = exported(id="r1", iteration=7)
    index.add([record])
    facts = record.predicate
    assert found(index, "adapter") == AdapterSummary(
        digest=record.subject,
        tensor_digest=digest_of("tensors"),
        bytes=facts["adapter"]["adapter_model.safetensors"]["bytes"],
        modules=3,
        r=4,
        lora_alpha=8,
        use_rslora=False,
        first_exported_at=facts["exported_at"],
        exports=(
            ExportSummary(
                checkpoint=digest_of("checkpoint"),
                run="r1",
                iteration=7,
                base="org/base",
                base_revision="main",
                path=facts["checkpoint"]["path"],
                reader="aorlta",
                exported_at=facts["exported_at"],
                record=record.digest,
            ),
        ),
    )
    assert type(found(index, "adapter").lora_alpha) is int


def test_what_the_index_has_not_heard_of_is_none(index: Index, exported: Export) -> None:
    assert index.adapter(digest_of("adapter")) is None
    index.add([exported("other")])
    assert index.adapter(digest_of("adapter")) is None


def test_adding_a_record_again_changes_nothing(index: Index, database: Path, exported: Export) -> None:
    index.add([exported(id="r1"), exported(id="r1")])
    before = found(index, "adapter")
    index.add([exported(id="r1")])
    assert found(index, "adapter") == before
    assert rows(database) == {"adapters": 1, "checkpoints": 1, "runs": 1, "exports": 1}


def test_two_exports_of_one_adapter_share_its_row_and_are_listed_oldest_first(
    index: Index, database: Path, exported: Export
) -> None:
    index.add([exported(at=5, checkpoint="second", id="r1", iteration=5), exported(at=2, checkpoint="first", id=None)])
    adapter = found(index, "adapter")
    assert [export.checkpoint for export in adapter.exports] == [digest_of("first"), digest_of("second")]
    assert [(export.run, export.iteration) for export in adapter.exports] == [(None, 3), ("r1", 5)]
    assert adapter.first_exported_at == "2026-01-02T00:00:00.000000Z"
    assert rows(database) == {"adapters": 1, "checkpoints": 2, "runs": 1, "exports": 2}


def test_records_of_other_kinds_are_left_alone(index: Index, exported: Export) -> None:
    index.add([dataclasses.replace(exported(), kind="other")])
    assert index.newest(10) == []


def test_the_newest_come_first_and_no_more_than_asked_for(index: Index, exported: Export) -> None:
    index.add([exported("b", at=2), exported("c", at=3), exported("a", at=1), exported("also b", at=2)])
    assert [adapter.digest for adapter in index.newest(3)] == [
        digest_of("c"),
        *sorted(map(digest_of, ("b", "also b")), reverse=True),  # at the same time: as every index would say it
    ]
    assert len(index.newest(10)) == 4
    index.add([exported("a", at=9, checkpoint="again")])  # an old adapter stays old
    assert index.newest(1)[0].digest == digest_of("c")


def test_adapters_with_equal_tensors_name_each_other(index: Index, exported: Export) -> None:
    index.add([exported("a"), exported("b"), exported("c"), exported("other", tensors="other")])
    assert found(index, "other").same_tensors == ()
    twins = {digest_of("b"), digest_of("c")}
    assert set(found(index, "a").same_tensors) == twins
    assert next(each for each in index.newest(4) if each.digest == digest_of("a")).same_tensors == tuple(sorted(twins))


def test_every_statement_is_answered_from_an_index(
    index: Index, database: Path, exported: Export, compared: Compared, moved: Moved
) -> None:
    """Good at a million adapters: no table is scanned, but for the newest in the order of an index."""
    statements: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        statements.append((statement, parameters[0] if many else parameters))

    index.add([exported("first")])
    event.listen(Engine, "before_cursor_execute", note)
    try:
        index.add([exported("a", id="r1"), exported("a", id="r2", checkpoint="other")])
        index.add([compared("a", one="identical", two="partial")])
        index.add([moved("best", 1, after="a"), moved("best", 2, "a", "first"), moved("prod", 1, after="a")])
        index.is_empty()
        index.adapter(digest_of("a"))
        index.newest(2)
        index.exported(RunIteration("r1", 3), 2)
        index.exported(RunIteration("r1", None), 2)
        index.last_move(AliasName("best"))
        index.alias_history(AliasName("best"))
        index.aliases()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    planned = [each for each in statements if each[0].split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT")]
    assert len(planned) > 20
    with sqlite3.connect(database) as connection:
        steps = [
            step[3]
            for statement, parameters in planned
            for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    connection.close()
    scans = {step for step in steps if step.startswith("SCAN") and step != "SCAN sqlite_master"}
    assert scans == set()
    assert not any("TEMP B-TREE FOR ORDER BY" in step for step in steps if "adapters" in step or "alias" in step)
    assert "SEARCH alias_moves USING INDEX ix_alias_moves_stands_folded (stands=?)" in steps
    assert "SEARCH exports USING INDEX ix_exports_run_id_iteration (run_id=? AND iteration=?)" in steps
    assert "SEARCH comparisons USING INDEX ix_comparisons_adapter_id (adapter_id=?)" in steps
    assert "SEARCH exports USING INDEX ix_exports_adapter_id (adapter_id=?)" in steps
    assert any(step.startswith("SEARCH adapters USING INDEX ix_adapters_tensor_digest") for step in steps)


def test_removed_adapters_are_not_listed_and_what_is_known_of_them_stays(
    index: Index, exported: Export, removed: Callable[..., Record]
) -> None:
    index.add([exported("a", at=1), exported("b", at=2), removed("b")])
    assert [each.digest for each in index.newest(9)] == [digest_of("a")]
    assert found(index, "b").removed_at == "2026-05-01T00:00:00.000000Z"
    index.add([exported("b", at=2, checkpoint="late")])  # an export before the removal changes nothing
    assert found(index, "b").removed_at is not None
    again = exported("b", at=2, checkpoint="again")
    index.add(
        [records.make(records.EXPORT, again.subject, again.predicate | {"exported_at": "2026-06-01T00:00:00.000000Z"})]
    )
    assert found(index, "b").removed_at is None
    assert [each.digest for each in index.newest(9)] == [digest_of("b"), digest_of("a")]


def test_scores_that_stand_are_the_newest_of_runs_that_completed(
    index: Index, exported: Export, scored: Scored
) -> None:
    index.add([exported("a"), scored("a", at=3, status="stopped", accuracy=0.9)])
    assert found(index, "a").scores == {}
    index.add([scored("a", at=2, accuracy=0.5), scored("a", at=1, accuracy=0.75, loss=2)])
    assert found(index, "a").scores == {"accuracy": 0.5, "loss": 2}
    first, second, third = found(index, "a").score_runs
    assert (first.scores, first.status, first.reason) == ((("accuracy", 0.75), ("loss", 2)), "completed", None)
    assert (second.name, second.path, second.adapter) == ("eval", "/runs/eval", digest_of("a"))
    assert (third.status, third.reason, third.scores) == ("stopped", "out of time", (("accuracy", 0.9),))


def test_a_file_that_is_no_database_is_a_storage_error_and_left_alone(index: Index, database: Path) -> None:
    database.write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match="file is not a database") as caught:
        index.newest(1)
    assert caught.value.path == str(database)
    assert database.read_bytes() == b"not a database" * 100


def test_what_cannot_be_written_whole_is_not_written_at_all(index: Index, database: Path, exported: Export) -> None:
    assert index.newest(1) == []
    bad = exported("bad", iteration=None)
    bad.predicate["lora"] = {"r": 4, "lora_alpha": 0}
    with pytest.raises(MalformedFile, match=r"lora\.lora_alpha"):
        index.add([exported("good"), bad])
    assert rows(database) == {"adapters": 0, "checkpoints": 0, "runs": 0, "exports": 0}


def test_the_database_keeps_its_promises(index: Index, database: Path, exported: Export) -> None:
    index.add([exported()])
    handle = Database(str(database))
    with handle.writing() as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
        assert settings == ["wal", 2, 1]
        with (
            pytest.raises(sqlite3.OperationalError, match="locked"),
            sqlite3.connect(database, timeout=0) as other,
        ):  # a write transaction holds the lock from its first moment
            other.execute("BEGIN IMMEDIATE")
    other.close()


def test_unknown_fields_of_a_later_version_do_not_disturb(index: Index, exported: Export) -> None:
    record = exported()
    later = records.make(records.EXPORT, record.subject, {**record.predicate, "new": {"field": 1}})
    index.add([later])
    assert found(index, "adapter").exports[0].record == later.digest


def test_a_comparison_is_answered_with_every_fact_an_engine_a_row(
    index: Index, exported: Export, compared: Compared
) -> None:
    record = compared(rounding="stochastic", vllm="within-ulp")
    index.add([exported(), record])
    assert found(index, "adapter").comparisons == (
        ComparisonSummary(
            engine="vllm",
            verdict=Verdict.WITHIN_ULP,
            recipe="fp32",
            rounding="stochastic",
            device="cpu",
            threads=1,
            torch="2.9.0",
            base_digest=digest_of("base"),
            served_digest=digest_of("vllm"),
            surviving=0.75,
            rounded_away=0.5,
            compared_at="2026-02-01T00:00:00.000000Z",
            record=record.digest,
        ),
    )
    index.add([compared(at=2, one="incomplete", two="identical")])
    assert [each.engine for each in found(index, "adapter").comparisons] == ["vllm", "one", "two"]
    assert found(index, "adapter").comparisons[1].surviving is None
    assert found(index, "adapter").comparisons[1].rounding is None


def test_a_comparison_added_again_adds_only_the_engines_that_are_missing(
    index: Index, database: Path, exported: Export, compared: Compared
) -> None:
    index.add([exported(), compared(one="identical", two="identical")])
    before = found(index, "adapter")
    index.add([compared(one="identical", two="identical"), compared(one="identical", two="identical")])
    assert found(index, "adapter") == before
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM comparisons WHERE engine = 'one'")
    connection.close()
    index.add([compared(one="identical", two="identical")])
    assert {each.engine for each in found(index, "adapter").comparisons} == {"one", "two"}


def test_the_verdict_is_the_gravest_of_the_latest_comparison(
    index: Index, exported: Export, compared: Compared
) -> None:
    index.add([exported(), exported("other")])
    assert found(index, "adapter").verdict is None
    index.add([compared(at=5, one="identical", two="vacuous"), compared(at=2, one="base-only")])
    assert found(index, "adapter").verdict is Verdict.VACUOUS
    index.add([compared(at=9, one="identical", two="partial", three="incomplete")])
    assert found(index, "adapter").verdict is Verdict.PARTIAL
    listed = {adapter.digest: adapter.verdict for adapter in index.newest(9)}
    assert listed == {digest_of("adapter"): Verdict.PARTIAL, digest_of("other"): None}


def test_a_comparison_of_an_adapter_without_an_export_is_not_written(
    index: Index, exported: Export, compared: Compared
) -> None:
    with pytest.raises(StorageError, match="adapter_id"):
        index.add([exported("other"), compared(one="identical")])
    assert index.newest(9) == []
