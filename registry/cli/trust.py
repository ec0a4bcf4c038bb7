"""The commands that check what is stored, and that remove what is no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from registry.cli import exits
from registry.cli.arguments import Home, Json
from registry.cli.environment import open_registry
from registry.cli.output import Output, error_document, size, table
from registry.core.errors import Refused

if TYPE_CHECKING:
    from registry.operations.gc import Collected
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
    for note in done.notes:
        output.note(note)
    if done.seed is not None:
        output.note(f"a random share: --seed {done.seed} chooses it again")
    if done.quarantined:
        output.note(f"{done.quarantined} corrupt copies are kept in quarantine")
    output.result(_document(done, repaired), _text(done))
    raise typer.Exit(exits.DAMAGED if done.findings else exits.DONE)


def gc(
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", min=0, metavar="N", help="Keep the last N adapters of each run.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Keep what is younger than 12h, 30d or 2w.")
    ] = None,
    keep_aliased: Annotated[
        bool, typer.Option("--keep-aliased/--no-keep-aliased", help="Keep what an alias names.")
    ] = True,
    keep_scored: Annotated[
        bool, typer.Option("--keep-scored/--no-keep-scored", help="Keep what a score run used.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go, and how many bytes.")] = False,
    home_option: Home = None,
    as_json: Json = False,
) -> None:
    """Remove the adapters that nothing keeps, and list them. What another adapter was trained from is always kept.

    Their records stay, with why they were removed, and their checkpoints can be added again.
    """
    output = Output(as_json=as_json)
    done = open_registry(home_option, output).gc(
        keep_last=keep_last,
        older_than=older_than,
        keep_aliased=keep_aliased,
        keep_scored=keep_scored,
        dry_run=dry_run,
    )
    for error in done.failed:
        output.error(error)
    output.note(f"{'would remove' if dry_run else 'removed'} {len(done.gone)} adapters, {size(done.bytes)}")
    rows = ((each.digest, each.run or "-", _or_dash(each.iteration), each.bytes) for each in done.gone)
    document = _collected(done, dry_run=dry_run)
    output.result(document, table(("DIGEST", "RUN", "ITER", "BYTES"), rows) if done.gone else None)
    raise typer.Exit(max((exits.code_of(error) for error in done.failed), default=exits.DONE))


def _or_dash(value: int | None) -> object:
    return "-" if value is None else value


def _collected(done: Collected, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "adapters": [
            {"digest": str(each.digest), "run": each.run, "iteration": each.iteration, "bytes": each.bytes}
            for each in done.gone
        ],
        "bytes": done.bytes,
        "errors": [error_document(each) for each in done.failed],
    }


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
