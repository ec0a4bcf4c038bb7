"""Fixtures that tests of every layer use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.process import CommandLine
from tests.support.runs import write_checkpoint

settings.register_profile("suite", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("suite")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a registry may be made."""
    return tmp_path / "home"


@pytest.fixture
def cli(home: Path) -> CommandLine:
    """`aorlta-reg` against that registry."""
    return CommandLine(home)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One sound checkpoint of a run called `run`."""
    return write_checkpoint(tmp_path / "run")
