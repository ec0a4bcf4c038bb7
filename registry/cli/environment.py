"""What the environment says: where the registry lives."""

from __future__ import annotations

import os
import sys

from registry.cli.output import Output
from registry.core.errors import Refused
from registry.registry import Registry

HOME_VARIABLE = "AORLTA_REG_HOME"
_DIRECTORY = "aorlta-reg"


def open_registry(option: str | None, output: Output) -> Registry:
    """The registry that a command works on. What a person should know of its state goes to `output`."""
    return Registry(home(option), note=output.note)


def home(option: str | None) -> str:
    """The registry's directory: `--home`, else $AORLTA_REG_HOME, else the platform's data directory.

    Raises:
        Refused: none of them is known.
    """
    return option or os.environ.get(HOME_VARIABLE) or os.path.join(_data_directory(), _DIRECTORY)


def _data_directory() -> str:
    stated = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(stated):  # the specification has relative paths ignored
        return stated
    user = os.path.expanduser("~")
    if not os.path.isabs(user) or os.environ.get("HOME") == "":  # an empty one would be expanded to the root directory
        raise Refused("no home directory is known", hint=f"Give --home DIR or set ${HOME_VARIABLE}")
    if sys.platform == "darwin":
        return os.path.join(user, "Library", "Application Support")
    return os.path.join(user, ".local", "share")
