"""A copy of the registry that a module's tests share: its fixture `shelf` gives that one's home and its adapters. And a
run's checkpoints, with what is read of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from registry import Digest, Registry
from registry.operations import arrivals
from tests.support.arrivals import write_run


@pytest.fixture
def registry(shelf: tuple[Path, list[Digest]], tmp_path: Path) -> Registry:
    """To be changed."""
    shutil.copytree(shelf[0], tmp_path / "home")
    return Registry(tmp_path / "home")


@pytest.fixture
def adapters(shelf: tuple[Path, list[Digest]]) -> list[Digest]:
    """In it."""
    return shelf[1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three checkpoints, of which names sort otherwise than steps."""
    write_run(tmp_path / "run", 2, 10, 9)
    return tmp_path / "run"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checkpoints that are read, or hashed, from now on."""
    found: list[str] = []

    def watched(module: Any, name: str) -> None:
        original = getattr(module, name)

        def noting(path: str, *arguments: Any, **options: Any) -> Any:
            found.append(path)
            return original(path, *arguments, **options)

        monkeypatch.setattr(module, name, noting)

    import registry.checkpoints

    watched(registry.checkpoints, "read_checkpoint")
    watched(arrivals, "identify")
    return found
