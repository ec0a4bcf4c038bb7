"""The public surface: exactly these names, and importing them costs nothing that only some commands need."""

from __future__ import annotations

import json
import subprocess
import sys

import registry

PUBLIC = [
    "VERSION",
    "Ambiguous",
    "Conflict",
    "Digest",
    "IntegrityError",
    "InvalidReference",
    "NotFound",
    "Refused",
    "Registry",
    "RegistryError",
    "StorageError",
    "export_checkpoint",
]
EXPENSIVE = {"torch", "numpy", "safetensors", "peft", "transformers", "sqlalchemy", "alembic", "typer", "click", "rich"}


def test_the_public_names_are_these() -> None:
    assert registry.__all__ == PUBLIC
    assert all(hasattr(registry, name) for name in PUBLIC)


def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    program = "import json, sys; from registry import *; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert EXPENSIVE.isdisjoint(json.loads(done.stdout))
