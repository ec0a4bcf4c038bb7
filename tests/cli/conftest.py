"""Registries that tests of the command line only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry import Registry
from tests.support.process import CommandLine
from tests.support.runs import write_checkpoint
from tests.support.users import common_ground


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


@contextmanager
def shelf_for_all() -> Iterator[Shelf]:
    """A registry whose adapter has the alias `prod`, where every user may look."""
    with common_ground() as ground:
        checkpoint = write_checkpoint(ground / "run")
        cli = CommandLine(ground / "home")
        digest = cli.ok("add", checkpoint, "--alias", "prod").removeprefix("sha256:")
        yield Shelf(cli, checkpoint, digest)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """One registry for all tests of a module: leave it as it is."""
    root = tmp_path_factory.mktemp("shelf")
    checkpoint = write_checkpoint(root / "run")
    digest = Registry(root / "home").add(checkpoint).digest
    return Shelf(CommandLine(root / "home"), checkpoint, digest.hex)
