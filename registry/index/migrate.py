"""Running Alembic over the revisions in `migrations/`, in the source tree or inside the installed package."""

from __future__ import annotations

import os

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from registry.index.schema import metadata

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(connection: Connection) -> None:
    """Upgrade to the newest revision inside the connection's transaction."""
    command.upgrade(configuration(connection), "head")


def known_revisions() -> set[str]:
    """All revisions that this version of the program has."""
    script = ScriptDirectory.from_config(configuration())
    return {revision.revision for revision in script.walk_revisions()}


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration. The environment gets the connection and the metadata from here and imports nothing."""
    config = Config()
    config.set_main_option("script_location", _location().replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["metadata"] = metadata
    return config


def _location() -> str:
    installed = os.path.join(_PACKAGE, "migrations")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(_PACKAGE), "migrations")
