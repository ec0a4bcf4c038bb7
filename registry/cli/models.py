"""The commands that calculate with model weights. They need torch, and load it only when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.cli import exits, findings, plots
from registry.cli.arguments import Home, Json, Ref, Weights
from registry.cli.environment import open_registry
from registry.cli.output import Output, printable
from registry.core.errors import RegistryError

_RECIPES = "fp32, delta-rounded, low-precision or prerounded-fp32"


def merge(
    reference: Ref,
    base: Weights,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The model directory to make; it must not exist.")],
    recipe: Annotated[str, typer.Option("--recipe", metavar="NAME", help=f"The arithmetic: {_RECIPES}.")] = "fp32",
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Merge an adapter into a base model, one tensor at a time, and print the new model's directory. Needs torch."""
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    with output.progress(base) as progress:
        merged = registry.merge(reference, base, to, recipe, progress=progress)
    tensors, untied = merged.manifest["tensors"], merged.manifest["untied"]
    output.note(f"{tensors['changed']} tensors merged as {recipe}, {tensors['copied']} copied")
    if untied is not None:
        output.note(f"  {' and '.join(untied)} were tied: they are stored apart now, and config.json says so")
    output.result({"directory": merged.directory, "manifest": merged.manifest}, printable(merged.directory))


def compare(
    reference: Ref,
    base: Weights,
    served: Annotated[
        list[str], typer.Option("--served", metavar="PATH", help="What engines were served: files or directories.")
    ],
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="NAME", help=f"The arithmetic: {_RECIPES}; auto recognises it.")
    ] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, metavar="N", help="Tensors at a time. [default: one per core]")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="cpu|cuda", help="Where to calculate; cuda means AMD's GPUs too.")
    ] = "cpu",
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE.png", help="Also draw it, module by module. Needs matplotlib.")
    ] = None,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Hold base + adapter against what engines were served, and keep the verdict with the adapter. Needs torch.

    Exit code 5 unless every engine had the adapter.
    """
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    if plot is not None:
        plots.require_matplotlib()
    with output.progress(base) as progress:
        compared = registry.compare(reference, base, served, recipe, workers=threads, device=device, progress=progress)
    comparison = compared.comparison
    output.result(
        findings.comparison_document(compared.digest, comparison, compared.record.digest),
        findings.comparison_text(comparison),
    )
    for line in findings.failures(comparison):
        output.note(f"aorlta-reg: {line}")
    code = exits.code_of_comparison(comparison)
    if plot is not None:
        try:
            plots.draw_comparison(comparison, plot)
        except RegistryError as error:  # the verdict stands, and its exit code goes first
            output.error(error)
            code = code or exits.code_of(error)
    raise typer.Exit(code)


def diff(first: Ref, second: Ref, home_option: Home = None, as_json: Json = False) -> None:
    """Show how far two adapters are apart, module by module, as functions and as tensors. Needs torch."""
    output = Output(as_json=as_json)
    registry = open_registry(home_option, output)
    one, other = registry.resolve(first), registry.resolve(second)
    difference = registry.diff(str(one), str(other))
    output.result(findings.difference_document(one, other, difference), findings.difference_text(difference))
