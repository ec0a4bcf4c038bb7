"""The command that checks what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.cli import exits
from registry.cli.arguments import Home, Json
from registry.cli.environment import open_registry
from registry.cli.output import Output, error_document, size
from registry.core.errors import Refused

if TYPE_CHECKING:
    from registry.operations.repair import Repaired
    from registry.operations.verify import Verified

_PERCENT = 100


def verify(
    references: Annotated[
        list[str] | None, typer.Argument(metavar="[REF]...", help="Which adapters; or --all.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All adapters, records, and the whole index.")] = False,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="N%", help="A random share of all; at least one adapter.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Choose the same share again.")] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Make damaged adapters anew, where their checkpoints still match."),
    ] = False,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Check every byte, header, config and record, and the index, and tell all that is wrong: then exit code 5.

    Nothing is deleted, and without --repair nothing is changed. A damaged copy that is replaced is kept in quarantine,
    and all is checked again after a repair.
    """
    output = Output(as_json=as_json)
    whole = everything or sample is not None
    if whole == bool(references):
        raise Refused("give either REF... or --all, and --sample only of all", key="verify")
    if seed is not None and sample is None:
        raise Refused("belongs to --sample", key="--seed")
    share = None if sample is None else _share(sample)
    registry = open_registry(home_option, output)
    with output.progress("verify") as progress:
        done = registry.verify(*(references or ()), share=share, seed=seed, progress=progress)
    repaired = registry.repair(done) if repair and done.findings else None
    if repaired is not None:
        for digest, path in repaired.done:
            output.note(f"repaired: {digest} <- {path}")
        for error in repaired.failed:
            output.error(error)
        with output.progress("verify again") as progress:
            done = registry.verify(*(references or ()), share=share, seed=done.seed, progress=progress)
    for finding in done.findings:
        output.error(finding.error)
    if done.seed is not None:
        output.note(f"a random share: --seed {done.seed} chooses it again")
    if done.quarantined:
        output.note(f"{done.quarantined} corrupt copies are kept in quarantine")
    output.result(_document(done, repaired), _text(done))
    raise typer.Exit(exits.DAMAGED if done.findings else exits.DONE)


def _share(text: str) -> float:
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= _PERCENT:
        raise Refused("no share", key="--sample", found=repr(text), expected="a percentage, as 5%")
    return percent / _PERCENT


def _text(done: Verified) -> str:
    what = f"{done.checked} adapters, {size(done.bytes)} in {done.seconds:.2f} s"
    count = len(done.findings)
    return f"{what}: {'all is well' if not count else f'{count} finding' + 's' * (count > 1)}"


def _document(done: Verified, repaired: Repaired | None) -> dict[str, Any]:
    return {
        "checked": done.checked,
        "bytes": done.bytes,
        "findings": [
            {
                "digest": each.digest and str(each.digest),
                "check": each.check.value,
                **error_document(each.error),
            }
            for each in done.findings
        ],
        "repaired": [] if repaired is None else [{"digest": str(each), "path": path} for each, path in repaired.done],
        "not_repaired": [] if repaired is None else [error_document(each) for each in repaired.failed],
        "quarantined": done.quarantined,
        "seed": done.seed,
        "seconds": done.seconds,
    }
