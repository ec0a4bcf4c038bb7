"""The schema's revisions: one line of them, equal to the tables in the code, and never run against a newer database."""

from __future__ import annotations

import ast
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
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

    def parts(path: Path) -> dict[object, set[str]]:
        statements = execute(path, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {
            name: {line.strip(" ,\t)(") for line in str(sql).splitlines()}
            for name, sql in statements
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
            IndexVersion, match=r"newer.*found revision 9999; expected 0001.*pip install --upgrade"
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
