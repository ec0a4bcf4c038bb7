"""The schema's revisions: one line of them, equal to the tables in the code, and never run against a newer database."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from registry.core.errors import IndexVersion, StorageError
from registry.core.records import Record
from registry.core.summary import IndexRevision
from registry.index import Database, Index
from registry.index.migrate import configuration
from registry.index.schema import HEAD, metadata
from tests.support.values import digest_of

Export = Callable[..., Record]

MIGRATIONS = Path(__file__).parents[2] / "migrations"


def execute(database: Path, statement: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(database) as connection:
        rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def _parts(table: str) -> set[str]:
    _, _, rest = table.partition("(")
    inside, _, behind = rest.rpartition(")")
    return {part.strip() for part in re.split(r",(?![^(]*\))", inside)} | {behind.strip()}


def test_there_is_one_newest_revision_and_the_code_names_it() -> None:
    assert ScriptDirectory.from_config(configuration()).get_heads() == [HEAD]


def test_an_empty_database_is_brought_to_the_tables_in_the_code(database: Path) -> None:
    """What `alembic check` says, with types, defaults, constraints and indexes."""
    handle = Database(str(database))
    assert handle.revision() == IndexRevision(None, HEAD)
    handle.upgrade()
    assert handle.revision() == IndexRevision(HEAD, HEAD)
    engine = create_engine(f"sqlite:///{database}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_names_and_checks_are_those_in_the_code_too(database: Path, tmp_path: Path) -> None:
    """`alembic check` looks at neither check constraints nor the names of keys on SQLite."""
    Database(str(database)).upgrade()
    engine = create_engine(f"sqlite:///{tmp_path / 'created.sqlite'}")
    metadata.create_all(engine)
    engine.dispose()

    def parts(path: Path) -> dict[object, object]:
        """Tables by columns and constraints, since an added column stands behind those; indexes as they are."""
        statements = execute(path, "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {
            name: _parts(str(sql)) if kind == "table" else sql
            for name, kind, sql in statements
            if name != "alembic_version"
        }

    assert parts(database) == parts(tmp_path / "created.sqlite")


def test_upgrading_again_changes_nothing_and_keeps_what_is_there(
    index: Index, database: Path, exported: Export
) -> None:
    index.add([exported(id="r1")])
    before = index.adapter(digest_of("adapter"))
    Database(str(database)).upgrade()
    assert before is not None
    assert Index(Database(str(database))).adapter(digest_of("adapter")) == before
    assert Index(Database(str(database))).newest(5) == [before]


def test_a_newer_database_is_refused_with_what_to_do_and_left_alone(
    index: Index, database: Path, exported: Export
) -> None:
    index.add([exported()])
    execute(database, "UPDATE alembic_version SET version_num = '9999'")
    newer = Index(Database(str(database)))
    for use in (lambda: newer.newest(1), lambda: newer.add([exported("b")]), Database(str(database)).upgrade):
        with pytest.raises(
            IndexVersion, match=r"newer.*found revision 9999; expected 0004.*pip install --upgrade"
        ) as caught:
            use()
        assert caught.value.path == str(database)
    assert Database(str(database)).revision() == IndexRevision("9999", HEAD)
    assert execute(database, "SELECT count(*) FROM adapters") == [(1,)]


def test_a_migration_that_fails_leaves_nothing_behind(database: Path) -> None:
    execute(database, "CREATE TABLE runs (id INTEGER)")
    with pytest.raises(StorageError, match="table runs already exists"):
        Database(str(database)).upgrade()
    assert execute(database, "SELECT name FROM sqlite_master") == [("runs",)]


OLD = (
    "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
    "INSERT INTO alembic_version VALUES ('0001')",
    (
        "CREATE TABLE adapters (id INTEGER NOT NULL, digest VARCHAR(64) NOT NULL, tensor_digest VARCHAR(64) NOT NULL,"
        " bytes INTEGER NOT NULL, modules INTEGER NOT NULL, r INTEGER NOT NULL, lora_alpha FLOAT NOT NULL,"
        " use_rslora BOOLEAN NOT NULL, first_exported_at VARCHAR(32) NOT NULL,"
        " CONSTRAINT ck_adapters_lora_alpha_not_zero CHECK (lora_alpha <> 0),"
        " CONSTRAINT pk_adapters PRIMARY KEY (id), CONSTRAINT uq_adapters_digest UNIQUE (digest))"
    ),
    "CREATE INDEX ix_adapters_tensor_digest ON adapters (tensor_digest)",
    "CREATE INDEX ix_adapters_first_exported_at ON adapters (first_exported_at)",
    (
        "CREATE TABLE checkpoints (id INTEGER NOT NULL, digest VARCHAR(64) NOT NULL, bytes INTEGER NOT NULL,"
        " CONSTRAINT pk_checkpoints PRIMARY KEY (id), CONSTRAINT uq_checkpoints_digest UNIQUE (digest))"
    ),
    (
        "CREATE TABLE runs (id INTEGER NOT NULL, name VARCHAR NOT NULL,"
        " CONSTRAINT pk_runs PRIMARY KEY (id), CONSTRAINT uq_runs_name UNIQUE (name))"
    ),
    (
        "CREATE TABLE exports (id INTEGER NOT NULL, record VARCHAR(64) NOT NULL, adapter_id INTEGER NOT NULL,"
        " checkpoint_id INTEGER NOT NULL, run_id INTEGER, iteration INTEGER, base_name VARCHAR, base_revision VARCHAR,"
        " path VARCHAR NOT NULL, reader VARCHAR NOT NULL, exported_at VARCHAR(32) NOT NULL,"
        " CONSTRAINT fk_exports_adapter_id_adapters FOREIGN KEY(adapter_id) REFERENCES adapters (id),"
        " CONSTRAINT fk_exports_checkpoint_id_checkpoints FOREIGN KEY(checkpoint_id) REFERENCES checkpoints (id),"
        " CONSTRAINT fk_exports_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id),"
        " CONSTRAINT pk_exports PRIMARY KEY (id), CONSTRAINT uq_exports_record UNIQUE (record))"
    ),
    "CREATE INDEX ix_exports_adapter_id ON exports (adapter_id)",
    "CREATE INDEX ix_exports_checkpoint_id ON exports (checkpoint_id)",
    "CREATE INDEX ix_exports_run_id_iteration ON exports (run_id, iteration)",
    (
        f"INSERT INTO adapters VALUES (7, '{'a' * 64}', '{'b' * 64}', 872, 2, 4, 8.0, 0,"
        " '2026-01-01T00:00:00.000000Z'),"
        f" (8, '{'e' * 64}', '{'b' * 64}', 880, 2, 4, 16.5, 1, '2026-01-02T00:00:00.000000Z')"
    ),
    f"INSERT INTO checkpoints VALUES (3, '{'c' * 64}', 12345)",
    "INSERT INTO runs VALUES (5, 'r1')",
    (
        f"INSERT INTO exports VALUES (1, '{'d' * 64}', 7, 3, 5, 9, 'org/base', 'main', '/run/trainer.pt', 'aorlta',"
        " '2026-01-01T00:00:00.000000Z'),"
        f" (2, '{'f' * 64}', 8, 3, NULL, NULL, NULL, NULL, '/x/trainer.pt', 'aorlta', '2026-01-02T00:00:00.000000Z')"
    ),
)
"""An index as the first version of this program left it."""


def test_an_index_of_the_first_revision_is_brought_to_the_newest_with_its_rows(
    database: Path, compared: Export, tmp_path: Path
) -> None:
    for statement in OLD:
        execute(database, statement)
    tables = ("adapters", "checkpoints", "runs", "exports")

    def query(table: str) -> str:
        columns = (str(name) for _, name, *_ in execute(database, f"PRAGMA table_info({table})"))
        return f"SELECT {', '.join(columns)} FROM {table}"

    queries = [query(table) for table in tables]
    before = [execute(database, each) for each in queries]
    handle = Database(str(database))
    assert handle.revision() == IndexRevision("0001", HEAD)
    index = Index(handle)
    newest = index.newest(9)
    assert handle.revision() == IndexRevision(HEAD, HEAD)
    assert [execute(database, each) for each in queries] == before
    assert [(each.digest.hex, each.lora_alpha, each.use_rslora, each.verdict) for each in newest] == [
        ("e" * 64, 16.5, True, None),
        ("a" * 64, 8, False, None),
    ]
    (export,) = newest[1].exports
    assert (export.run, export.iteration, export.base, export.path) == ("r1", 9, "org/base", "/run/trainer.pt")

    execute(database, f"UPDATE adapters SET digest = '{digest_of('adapter').hex}' WHERE id = 7")
    index.add([compared(one="identical", two="base-only")])
    upgraded = index.adapter(digest_of("adapter"))
    assert upgraded is not None
    assert upgraded.verdict == "base-only"

    fresh = tmp_path / "fresh.sqlite"
    Database(str(fresh)).upgrade()
    schema = "SELECT name FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    assert execute(database, schema) == execute(fresh, schema)


def test_the_first_revision_is_still_what_it_was(tmp_path: Path) -> None:
    """Or the test above would upgrade something that no program ever made."""
    made, literal = tmp_path / "made.sqlite", tmp_path / "literal.sqlite"
    for statement in OLD:
        execute(literal, statement)
    engine = create_engine(f"sqlite:///{made}")
    with engine.begin() as connection:
        command.upgrade(configuration(connection), "0001")
    engine.dispose()
    for table in ("adapters", "checkpoints", "runs", "exports"):
        for pragma in ("table_info", "foreign_key_list", "index_list"):
            facts = [execute(database, f"PRAGMA {pragma}({table})") for database in (made, literal)]
            assert facts[0] == facts[1], (table, pragma)


@pytest.mark.parametrize("script", sorted(MIGRATIONS.rglob("*.py")), ids=lambda script: script.stem)
def test_revisions_import_nothing_of_the_program(script: Path) -> None:
    """They stay what they were when the program changes."""
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(script.read_bytes()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported <= {"alembic", "sqlalchemy"}
