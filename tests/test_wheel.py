"""The wheel works installed alone: nothing of the source tree, and no torch, is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry import VERSION
from registry.core.layout import ADAPTER_FILES
from registry.index.schema import HEAD
from tests.support.runs import write_checkpoint
from tests.support.trees import contents

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path, **extra: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=cwd, env={**environment, **extra}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Built:
    """What `python -m build` made."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


def test_the_wheel_holds_package_migrations_and_types_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    revisions = {f"registry/migrations/versions/{script.name}" for script in ROOT.glob("migrations/versions/*.py")}
    package = {str(path.relative_to(ROOT)) for path in ROOT.glob("registry/**/*.py")}
    assert revisions
    assert names >= revisions | package | {"registry/migrations/env.py", "registry/py.typed"}
    assert {name.partition("/")[0] for name in names} == {"registry", f"aorlta_registry-{VERSION}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or "tests" in name]


def test_the_sdist_holds_what_it_takes_to_build_and_test_it(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "Makefile", "migrations/env.py", "tests/test_wheel.py"}


def test_the_command_works_in_an_empty_environment(built: Built, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    python, command = place / "bin/python", place / "bin/aorlta-reg"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", built.wheel, cwd=tmp_path)
    installed = run(python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path).lower()
    assert not [name for name in ("torch", "numpy", "peft", "safetensors") if f"{name}==" in installed]
    assert run(python, "-c", "import registry; print(registry.__file__)", cwd=tmp_path).startswith(str(place))

    home = {"AORLTA_REG_HOME": str(tmp_path / "home")}
    checkpoint = write_checkpoint(tmp_path / "run")
    assert run(command, "--version", cwd=tmp_path) == f"aorlta-reg {VERSION}"
    assert run(command, "db", "upgrade", cwd=tmp_path, **home) == f"index at {HEAD} (was empty)"
    digest = run(command, "add", checkpoint, cwd=tmp_path, **home)
    assert run(command, "get", digest, "--to", tmp_path / "got", cwd=tmp_path, **home) == str(tmp_path / "got")
    stored = Path(run(command, "path", digest[:20], cwd=tmp_path, **home))
    assert contents(stored) == contents(tmp_path / "got")
    assert contents(stored).keys() == set(ADAPTER_FILES)
    assert digest.removeprefix("sha256:")[:12] in run(command, "list", cwd=tmp_path, **home)
