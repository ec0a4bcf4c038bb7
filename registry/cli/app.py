"""The commands: each reads its arguments, calls one method of the registry, and hands the result to the sink."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from registry.cli import (
    INTERRUPTED,
    aliases,
    documents,
    exits,
    findings,
    index,
    interrupted,
    lineage,
    models,
    removal,
    scores,
    search,
    trust,
)
from registry.cli.arguments import AllowNonfinite, Alpha, Base, Checkpoint, Checkpoints, Home, Json, Parent, Ref, Run
from registry.cli.environment import open_registry
from registry.cli.output import LINE, Output, error_document, printable, silence
from registry.core.errors import Refused, RegistryError, StorageError, shortened
from registry.core.version import VERSION
from registry.registry import export_checkpoint

_A_MOMENT = 0.01  # seconds
_UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Of click, or of the copy of it that newer versions of typer hold."""


class _Commands(TyperGroup):
    """Turns what a command raises into a message and an exit code."""

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


app = typer.Typer(
    name="aorlta-reg",
    cls=_Commands,
    help="Knows exactly which LoRA adapter it was: raw RL checkpoints in, PEFT adapters by hash out, bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(aliases.app, name="alias")
app.add_typer(scores.app, name="score")
app.add_typer(index.database, name="db")


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
        print(f"aorlta-reg {VERSION}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Knows exactly which LoRA adapter it was: raw RL checkpoints in, PEFT adapters by hash out, bit for bit."""


@app.command()
def add(
    checkpoints: Checkpoints,
    base: Base = None,
    served: Annotated[
        list[str] | None,
        typer.Option("--served", metavar="PATH", help="What engines were served; found by itself in a run directory."),
    ] = None,
    run: Run = None,
    parent: Parent = None,
    alpha: Alpha = None,
    alias: Annotated[
        str | None, typer.Option("--alias", metavar="NAME", help="Then let this alias name the adapter.")
    ] = None,
    allow_nonfinite: AllowNonfinite = False,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Export checkpoints into the registry and print the adapters' digests. Adding again changes nothing.

    With --base DIR the adapters are also compared with what the engines were served. A checkpoint that is refused does
    not stop the others; the exit code is then that of the worst.
    """
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    if len(checkpoints) > 1 and (served or alias is not None):
        option = "--served" if served else "--alias"
        raise Refused(f"{option} belongs to one checkpoint", found=f"{len(checkpoints)} checkpoints")
    adapters, errors, worst = [], [], exits.DONE
    for path in checkpoints:
        try:
            with output.progress(path) as progress:
                added = registry.add(
                    path,
                    served=served or (),
                    alias=alias,
                    parent=parent,
                    alpha=alpha,
                    run=run,
                    base=base,
                    allow_nonfinite=allow_nonfinite,
                    progress=progress,
                )
        except RegistryError as error:
            output.error(error)
            errors.append({"checkpoint": path, **error_document(error)})
            worst = max(worst, exits.code_of(error))
            continue
        output.line(str(added.digest))
        output.note(documents.added_text(path, added))
        if alias is not None:
            output.note(f"  alias: {alias}")
        for warning in (*added.manifest["warnings"], *([added.damage] if added.damage else [])):
            output.note(f"  warning: {warning}")
        if added.comparison is not None:
            for line in findings.comparison_text(added.comparison).splitlines():
                output.note(f"  {line}")
            for line in findings.failures(added.comparison):
                output.note(f"aorlta-reg: {path}: {line}")
            worst = max(worst, exits.code_of_comparison(added.comparison))
        if added.comparison_error is not None:
            output.error(added.comparison_error)
            errors.append({"checkpoint": path, **error_document(added.comparison_error)})
            worst = max(worst, exits.code_of(added.comparison_error))
        adapters.append(documents.added_document(path, added))
    output.result({"adapters": adapters, "errors": errors})
    raise typer.Exit(worst)


@app.command()
def export(
    checkpoint: Checkpoint,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="The adapter directory to make; it must not exist.")],
    base: Base = None,
    run: Run = None,
    alpha: Alpha = None,
    allow_nonfinite: AllowNonfinite = False,
    as_json: Json = False,
) -> None:
    """Export one checkpoint into a PEFT adapter directory, without a registry, and print its digest."""
    output = Output(as_json=as_json)
    with output.progress(checkpoint) as progress:
        exported = export_checkpoint(
            checkpoint, out, alpha=alpha, run=run, base=base, allow_nonfinite=allow_nonfinite, progress=progress
        )
    for warning in exported.manifest["warnings"]:
        output.note(f"  warning: {warning}")
    document = {"digest": str(exported.digest), "directory": exported.directory}
    output.result({**document, "warnings": exported.manifest["warnings"]}, str(exported.digest))


@app.command()
def get(
    reference: Ref,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The directory to make; it must not exist.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace DIR, if it holds an adapter's files and nothing else.")
    ] = False,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Copy an adapter into a new directory, every byte verified, and print the directory."""
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    digest = registry.resolve(reference)
    directory = registry.get(str(digest), to, force=force)
    output.result({"digest": str(digest), "directory": directory}, printable(directory))


@app.command()
def path(reference: Ref, home_option: Home = None, as_json: Json = False) -> None:
    """Verify an adapter and print its directory inside the registry, for tools that only read it."""
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    digest = registry.resolve(reference)
    directory = registry.path(str(digest))
    output.result({"digest": str(digest), "path": directory}, printable(directory))


@app.command()
def show(reference: Ref, home_option: Home = None, as_json: Json = False) -> None:
    """Show what is known about an adapter: identity, settings, and every checkpoint that gave it."""
    output = Output(as_json=as_json)
    adapter = open_registry(home_option, output).show(reference)
    output.result(documents.adapter_document(adapter), documents.adapter_text(adapter))


app.command("list")(search.list_)
for command in (search.find, models.merge, models.compare, models.diff, lineage.lineage, index.reindex, removal.rm):
    app.command()(command)
app.command()(trust.verify)
app.command()(trust.gc)
