"""An interrupt at any moment: exit code 130 and one line, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from registry import Registry
from tests.support.process import CommandLine
from tests.support.runs import write_checkpoint

STARTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command line's own first line, nothing is told
from registry.cli import main
sys.stdout.write("started\\n")
sys.stdout.flush()
main()
"""
DELAYS = [0.05 * step for step in range(20)]
COMMANDS = ("list", "alias", "reindex", "path", "add")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, list[list[str]]]:
    root = tmp_path_factory.mktemp("busy")
    checkpoint = write_checkpoint(root / "run")
    digest = Registry(root / "home").add(checkpoint).digest.hex
    more = {"alias": ["list"], "path": [digest], "add": [str(checkpoint)] * 50}
    return CommandLine(root / "home"), [[name, *more.get(name, [])] for name in COMMANDS]


def test_an_interrupt_within_the_first_second_gives_130_and_no_traceback(
    busy: tuple[CommandLine, list[list[str]]],
) -> None:
    cli, commands = busy
    codes = []
    for number, delay in enumerate(DELAYS):
        with subprocess.Popen(
            [sys.executable, "-c", STARTED, *commands[number % len(commands)]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=cli.environment(),
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        codes.append(process.returncode)
        assert process.returncode in (130, -signal.SIGINT, 0), (delay, process.returncode, err)
        assert "Traceback" not in err, (delay, err)
        assert "Exception ignored" not in err, (delay, err)
        if process.returncode == 130:
            assert err.splitlines()[-1] == "aorlta-reg: interrupted; nothing half-done is visible"
    assert 130 in codes


def assert_interrupted(program: str, busy: tuple[CommandLine, list[list[str]]], **extra: str) -> None:
    """Run a command in a program that interrupts it: it must end as an interrupted one does."""
    cli, commands = busy
    done = subprocess.run(
        [sys.executable, "-c", program, *commands[0]],
        capture_output=True,
        text=True,
        env=cli.environment(**extra),
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "aorlta-reg: interrupted; nothing half-done is visible\n"


LOADING = """
import os, signal, sys
from importlib.abc import MetaPathFinder
class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == os.environ["DURING"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from registry.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "registry.cli.app", "registry.registry", "sqlalchemy", "registry.index"])
def test_an_interrupt_during_an_import_ends_the_command(module: str, busy: tuple[CommandLine, list[list[str]]]) -> None:
    assert_interrupted(LOADING, busy, DURING=module)


FORGOTTEN = """
import os, signal, sys
from registry.cli import main, search
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):  # where the interrupt is raised
            pass
listing = search.open_registry
def opened(*arguments):
    Finalized()
    return listing(*arguments)
search.open_registry = opened
main()
"""


def test_an_interrupt_in_a_finalizer_is_not_forgotten(busy: tuple[CommandLine, list[list[str]]]) -> None:
    assert_interrupted(FORGOTTEN, busy)


IN_A_CLASS = """
from registry.cli import main, search
class Interrupting:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt
def opened(*arguments):
    type("Made", (), {"field": Interrupting()})
search.open_registry = opened
main()
"""


def test_an_interrupt_while_a_class_is_made_is_one(busy: tuple[CommandLine, list[list[str]]]) -> None:
    assert_interrupted(IN_A_CLASS, busy)


def test_a_command_in_the_background_of_a_shell_ignores_interrupts(tmp_path: Path) -> None:
    program = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{LOADING}"
    environment = {**os.environ, "AORLTA_REG_HOME": str(tmp_path), "DURING": "typer"}
    done = subprocess.run(
        [sys.executable, "-c", program, "list"], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
