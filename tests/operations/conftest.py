"""A copy of the registry that a module's tests share: its fixture `shelf` gives that one's home and its adapters."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from registry import Digest, Registry


@pytest.fixture
def registry(shelf: tuple[Path, list[Digest]], tmp_path: Path) -> Registry:
    """To be changed."""
    shutil.copytree(shelf[0], tmp_path / "home")
    return Registry(tmp_path / "home")


@pytest.fixture
def adapters(shelf: tuple[Path, list[Digest]]) -> list[Digest]:
    """In it."""
    return shelf[1]
