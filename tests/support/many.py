"""Many commands in the time of a few: a process that has loaded the command line forks for each of them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from registry.cli import main
from tests.support.loading import load_program
from tests.support.process import CommandLine, Finished

ROOT = Path(__file__).parents[2]


def run_each(cli: CommandLine, commands: Iterable[Sequence[str | Path]], cwd: Path | None = None) -> list[Finished]:
    """Run these commands one after the other; what each left."""
    requests = [[str(argument) for argument in command] for command in commands]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.many"],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        env=cli.environment(PYTHONPATH=str(ROOT)),
        cwd=cwd,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Finished(**each) for each in json.loads(done.stdout)]


def _load(requests: list[list[str]]) -> None:
    """Load what these commands would each load for themselves: all of the program, and what some of it needs."""
    load_program()
    words = {word for request in requests for word in request}
    if words & {"compare", "merge", "diff"}:
        importlib.import_module("torch")
    if words & {"--plot", "plot"}:
        importlib.import_module("matplotlib.figure")
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        sys.argv = ["aorlta-reg", "list", "--no-such-option"]
        with contextlib.suppress(SystemExit):
            main()  # the parser loads what it needs when it first parses
    gc.freeze()


def _run(arguments: list[str], directory: Path) -> dict[str, object]:
    out, err = directory / "out", directory / "err"
    if (child := os.fork()) == 0:
        for stream, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["aorlta-reg", *arguments]
        code = 1
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"code": code, "out": out.read_text(encoding="utf-8"), "err": err.read_text(encoding="utf-8")}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    _load(asked)
    with tempfile.TemporaryDirectory() as scratch:
        results = [_run(request, Path(scratch)) for request in asked]
    json.dump(results, sys.stdout)
