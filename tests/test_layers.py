"""The architecture, as the linter and a ruler see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 350
FACADE = 800
"""registry.py holds one documented method for every use case, and nothing else."""


def test_imports_point_downward_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "module", sorted((ROOT / "registry").rglob("*.py")), ids=lambda module: str(module.relative_to(ROOT))
)
def test_no_module_grows_long(module: Path) -> None:
    limit = FACADE if module == ROOT / "registry" / "registry.py" else LONGEST
    assert len(module.read_text(encoding="utf-8").splitlines()) <= limit
