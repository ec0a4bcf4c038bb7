"""The whole program, loaded: for processes that fork, so that none of those forked has to load any of it."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import registry


def load_program() -> list[ModuleType]:
    """Import every module of the program but those that would run it. None of them loads torch or matplotlib yet."""
    names = (each.name for each in pkgutil.walk_packages(registry.__path__, "registry."))
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]
