"""The commands that take checkpoints in: into the registry, or into a directory without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.cli import documents, exits, findings
from registry.cli.arguments import AllowNonfinite, Alpha, Base, Checkpoint, Checkpoints, Home, Json, Parent, Run
from registry.cli.environment import open_registry
from registry.cli.output import Output, error_document, size
from registry.core.errors import Refused, RegistryError
from registry.registry import checkpoints_in, export_checkpoint, is_checkpoint

if TYPE_CHECKING:
    from registry.operations.add import Added
    from registry.operations.arrivals import Arrival
    from registry.registry import Registry


class Told:
    """What a command has told of checkpoints so far, and the worst exit code of it."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.adapters: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []
        self.worst = exits.DONE

    def added(self, path: str, added: Added) -> None:
        """Its digest on stdout, the rest on stderr."""
        output = self.output
        output.line(str(added.digest))
        output.note(documents.added_text(path, added))
        for warning in (*added.manifest["warnings"], *([added.damage] if added.damage else [])):
            output.note(f"  warning: {warning}")
        if added.comparison is not None:
            for line in findings.comparison_text(added.comparison).splitlines():
                output.note(f"  {line}")
            for line in findings.failures(added.comparison):
                output.note(f"aorlta-reg: {path}: {line}")
            self.worst = max(self.worst, exits.code_of_comparison(added.comparison))
        if added.comparison_error is not None:
            self.failed(path, added.comparison_error)
        self.adapters.append(documents.added_document(path, added))

    def failed(self, path: str, error: RegistryError) -> None:
        """Why it was not done."""
        self.output.error(error)
        self.errors.append({"checkpoint": path, **error_document(error)})
        self.worst = max(self.worst, exits.code_of(error))

    def arrived(self, arrival: Arrival) -> None:
        """One checkpoint of a run."""
        if arrival.added is not None:
            self.added(arrival.checkpoint, arrival.added)
        elif arrival.error is not None:
            self.failed(arrival.checkpoint, arrival.error)
        else:
            if arrival.state.value == "known":
                self.output.line(str(arrival.digest))
            if arrival.reason is not None:
                self.output.note(f"incomplete: {arrival.reason} <- {arrival.checkpoint}")
            self.skipped.append(documents.skipped_document(arrival))


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
    """Export checkpoints, or all those of a run, into the registry and print the adapters' digests, by step.

    Adding again changes nothing. With --base DIR the adapters are also compared with what the engines were served. A
    checkpoint that is refused does not stop the others; the exit code is then that of the worst.
    """
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    told = Told(output)
    runs = {path: found for path in checkpoints if (found := _of_a_run(told, path)) != []}
    if (len(checkpoints) > 1 or runs) and (served or alias is not None):
        option = "--served" if served else "--alias"
        what = f"{len(checkpoints)} checkpoints" if len(checkpoints) > 1 else "a run"
        raise Refused(f"{option} belongs to one checkpoint", found=what)
    options: dict[str, Any] = {"alpha": alpha, "run": run, "base": base, "parent": parent}
    options["allow_nonfinite"] = allow_nonfinite
    for path in checkpoints:
        if path in runs:
            _add_run(told, registry, path, runs[path] or [], options)
            continue
        try:
            with output.progress(path) as progress:
                added = registry.add(path, served=served or (), alias=alias, progress=progress, **options)
        except RegistryError as error:
            told.failed(path, error)
            continue
        told.added(path, added)
        if alias is not None:
            output.note(f"  alias: {alias}")
    output.result({"adapters": told.adapters, "errors": told.errors, "skipped": told.skipped})
    raise typer.Exit(told.worst)


def _of_a_run(told: Told, path: str) -> list[tuple[str, int]] | None:
    """The checkpoints of a run with their sizes; none where it is no run, None where it is none to be added."""
    alone = is_checkpoint(path)
    try:
        found = checkpoints_in(path)
    except RegistryError as error:
        if alone:
            return []
        told.failed(path, error)
        return None
    if alone and found:
        told.output.note(f"{path} is a checkpoint itself: the {len(found)} below it are not added; `watch` takes them")
    return [] if alone else found


def _add_run(told: Told, registry: Registry, path: str, listed: list[tuple[str, int]], options: dict[str, Any]) -> None:
    if not listed:
        return
    sizes = dict(listed)
    total = sum(sizes.values())
    states: Counter[str] = Counter()
    read = passed = 0

    def standing() -> str:
        return f"{states.total()} of {len(listed)}, {size(read)} of {size(total)}"

    with told.output.progress(path, standing) as report:

        def advance(count: int, _: int) -> None:
            nonlocal read
            read += count
            if report is not None:
                report(count, total)

        for arrival in _arrivals(told, registry, path, options, None if report is None else advance):
            states[arrival.state.value if arrival.added is None else arrival.added.outcome.value] += 1
            told.arrived(arrival)
            passed += sizes.get(arrival.checkpoint, 0)
            if total:
                advance(max(0, passed - read), total)  # what was not read, or not to its end
    if states:
        told.output.note(f"{path}: {', '.join(f'{count} {state}' for state, count in states.items())}")


def _arrivals(
    told: Told,
    registry: Registry,
    path: str,
    options: dict[str, Any],
    progress: Callable[[int, int], None] | None,
) -> Iterator[Arrival]:
    try:
        yield from registry.add_run(path, progress=progress, **options)
    except RegistryError as error:
        told.failed(path, error)


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
