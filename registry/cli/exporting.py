"""The commands that take checkpoints in: into the registry, or into a directory without one."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.cli import documents, exits, findings
from registry.cli.arguments import AllowNonfinite, Alpha, Base, Checkpoint, Checkpoints, Home, Json, Parent, Run
from registry.cli.environment import open_registry
from registry.cli.output import Output, error_document
from registry.core.errors import Refused, RegistryError
from registry.registry import export_checkpoint


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
