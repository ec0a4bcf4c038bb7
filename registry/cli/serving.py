"""The command that keeps a directory of adapters for an inference engine to look into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.cli import exits
from registry.cli.arguments import BaseName, Home, Json, MaxRank
from registry.cli.environment import open_registry
from registry.cli.output import Output, error_document
from registry.core.errors import NotFound, Refused

if TYPE_CHECKING:
    from registry.core.digest import Digest
    from registry.core.errors import RegistryError
    from registry.operations.view import Viewed


def view(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A view, an empty directory, or a name for a new one.")
    ],
    engine: Annotated[
        str, typer.Option("--for", metavar="ENGINE", help="vllm, sglang or peft: leave out what it would not load.")
    ],
    references: Annotated[
        list[str] | None, typer.Argument(metavar="[REF]...", help="The adapters; none for all, or for those of --run.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="The adapters of this run.")] = None,
    newest: Annotated[
        int | None, typer.Option("--newest", min=1, metavar="N", help="Only so many: the last of the run, or of all.")
    ] = None,
    base_name: BaseName = None,
    max_rank: MaxRank = None,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Let DIR hold verified copies of adapters and of no others, each in a directory named by its digest; print them.

    Run again, it adds what is new, checks what is there, and removes what is no longer wanted. vLLM's resolver finds an
    adapter there by that name if it serves the base under the name that the adapter's config has for it.
    """
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    named = dict.fromkeys(registry.resolve(reference) for reference in references or ())
    with output.progress(directory) as progress:
        found = registry.view(
            directory,
            [str(digest) for digest in named],
            engine=engine,
            run=run,
            newest=newest,
            base_name=base_name,
            max_rank=max_rank,
            progress=progress,
        )
    for error in found.left_out.values():
        output.note(f"  left out: {error}")
    counts = Counter(change.value for change in found.adapters.values())
    told = [f"{count} {change}" for change, count in sorted(counts.items())]
    told += [f"{len(each)} {what}" for each, what in ((found.removed, "removed"), (found.left_out, "left out")) if each]
    output.note(f"{found.directory}: {', '.join(told)}")
    for line in _base_lines(found):
        output.note(line)
    output.result(_document(found, engine), "\n".join(digest.hex for digest in found.adapters) or None)
    raise typer.Exit(max((_code(digest, error, named) for digest, error in found.left_out.items()), default=exits.DONE))


def _code(digest: Digest, error: RegistryError, named: Collection[Digest]) -> int:
    """That an engine cannot have one of many, or that it has just been removed, is no failure."""
    return exits.DONE if isinstance(error, Refused | NotFound) and digest not in named else exits.code_of(error)


def _base_lines(found: Viewed) -> Iterator[str]:
    for base, count in sorted(found.bases.items(), key=str):
        if base is None:
            yield f"  {count} of no known base: give its name with --base-name"
        else:
            yield f"  {count} of the base {base}"


def _document(found: Viewed, engine: str) -> dict[str, Any]:
    return {
        "directory": found.directory,
        "engine": engine,
        "adapters": [
            {"digest": str(digest), "name": digest.hex, "outcome": change.value}
            for digest, change in found.adapters.items()
        ],
        "removed": [str(digest) for digest in found.removed],
        "left_out": [{"digest": str(digest), **error_document(error)} for digest, error in found.left_out.items()],
        "bases": [{"base": base, "adapters": count} for base, count in sorted(found.bases.items(), key=str)],
    }
