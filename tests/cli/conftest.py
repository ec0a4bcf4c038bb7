"""Registries that tests of the command line only read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from registry import Registry
from tests.support.process import CommandLine
from tests.support.runs import write_checkpoint


@dataclass(frozen=True)
class Shelf:
    """A registry with one adapter, the checkpoint it came from, and the adapter's hex digest."""

    cli: CommandLine
    checkpoint: Path
    hex: str

    @property
    def directory(self) -> Path:
        """Where the adapter lies."""
        return self.cli.home / "adapters" / self.hex[:2] / self.hex


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """One registry for all tests of a module: leave it as it is."""
    root = tmp_path_factory.mktemp("shelf")
    checkpoint = write_checkpoint(root / "run")
    digest = Registry(root / "home").add(checkpoint).digest
    return Shelf(CommandLine(root / "home"), checkpoint, digest.hex)
