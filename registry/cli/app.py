"""The commands: each reads its arguments, calls one method of the registry, and hands the result to the sink."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from registry.cli import INTERRUPTED, exits, interrupted
from registry.cli.groups import group
from registry.cli.output import LINE, Output, printable, silence
from registry.core.errors import RegistryError, StorageError, shortened
from registry.core.version import VERSION

_COMMANDS = {
    "add": "exporting:add",
    "watch": "watching:watch",
    "export": "exporting:export",
    "get": "stored:get",
    "path": "stored:path",
    "view": "serving:view",
    "show": "stored:show",
    "list": "search:list_",
    "find": "search:find",
    "merge": "models:merge",
    "compare": "models:compare",
    "diff": "models:diff",
    "lineage": "lineage:lineage",
    "reindex": "index:reindex",
    "rm": "removal:rm",
    "verify": "trust:verify",
    "gc": "trust:gc",
    "alias": "aliases:app",
    "score": "scores:app",
    "db": "index:database",
}
"""Where each command is: a module here, and a function or a group in it."""
_A_MOMENT = 0.01  # seconds
_UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Of click, or of the copy of it that newer versions of typer hold."""


class _Commands(TyperGroup):
    """Loads a command when it is asked for, and turns what it raises into a message and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names: Any = dict.fromkeys(_COMMANDS)
        self.commands = names  # for lists and for suggestions

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  as the class above has it
        return _loaded(cmd_name) if cmd_name in _COMMANDS else None

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _printable_usage():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _interruptible(), _printable_usage():
                result = super().invoke(ctx)
                sys.stdout.flush()
        except RegistryError as error:
            Output(as_json=_wants_json()).error(error)
            sys.exit(exits.code_of(error))
        except (KeyboardInterrupt, RuntimeError) as error:
            # Python 3.11 makes the latter of an interrupt in a class that is being made, as where a module is loaded.
            if isinstance(error, RuntimeError) and not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            print("aorlta-reg: interrupted; nothing half-done is visible", file=sys.stderr)  # noqa: T201
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            silence(sys.stdout)
            sys.exit(exits.OUTPUT_CLOSED)
        return result


def _loaded(name: str) -> Any:
    """The command of that name; the others, and what only they need, are not loaded."""
    module, _, attribute = _COMMANDS[name].partition(":")
    command = getattr(import_module(f"registry.cli.{module}"), attribute)
    if not isinstance(command, typer.Typer):
        alone = group()
        alone.command(name)(command)
        command = alone
    return typer.main.get_command(command)


@contextmanager
def _printable_usage() -> Iterator[None]:
    """What click says of arguments holds them as they were given."""
    try:
        yield
    except _UsageError as error:
        error.message = shortened(printable(error.message), LINE)
        raise


@contextmanager
def _interruptible() -> Iterator[None]:
    """While a command is at work, an interrupt is raised in it, so that it can clean up."""
    if signal.getsignal(signal.SIGINT) is not interrupted:
        yield
        return
    sys.unraisablehook = _raise_again
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def _raise_again(unraisable: Any) -> None:
    """An interrupt that comes in a finalizer or a callback of the garbage collector would be told and forgotten.

    It could not be raised from here either, so it comes again in a moment.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _A_MOMENT)
    else:
        sys.__unraisablehook__(unraisable)


app = group(
    name="aorlta-reg",
    cls=_Commands,
    help="Knows exactly which LoRA adapter it was: raw RL checkpoints in, PEFT adapters by hash out, bit for bit.",
    no_args_is_help=True,
)


def main() -> None:
    """Run the command line."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell's `>&-`: there is nobody to tell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  it lives as long as the process
        getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        app()
    except OSError as error:
        failure = StorageError(os.strerror(error.errno or 0).lower(), path=error.filename or "standard output")
        Output(as_json=_wants_json()).error(failure)
        silence(sys.stdout)
        sys.exit(exits.code_of(failure))


def _wants_json() -> bool:
    formats = (*zip(sys.argv, sys.argv[1:], strict=False), *(tuple(each.split("=", 1)) for each in sys.argv))
    return "--json" in sys.argv or ("--format", "json") in formats


def _version(wanted: bool) -> None:
    if wanted:
        print(f"aorlta-reg {VERSION}", flush=True)  # noqa: T201  a full disk is found out here, not at the exit
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Knows exactly which LoRA adapter it was: raw RL checkpoints in, PEFT adapters by hash out, bit for bit."""
