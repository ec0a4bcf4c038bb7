"""The aorlta checkpoint: RUN_DIR/ckpt/iter-<n>/trainer.pt beside its manifest (DESIGN 4.1)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Unpack

from registry.checkpoints import checks, facts
from registry.checkpoints.lora_keys import FoundLora, find_lora
from registry.checkpoints.manifests import find_entry, has_manifest, require_listed
from registry.checkpoints.torchfile import open_torch_file
from registry.core.errors import Refused, shown
from registry.core.model import (
    Checkpoint,
    Lora,
    LoraPair,
    ManifestEntry,
    Parent,
    Provenance,
    ReadOptions,
    RunCheckpoint,
)
from registry.core.tensor import Tensor, is_zero

NAME = "aorlta"
LOOKS_FOR = TENSOR_FILE = "trainer.pt"
CHECKPOINTS = "ckpt"
"""The directory of a run that holds its checkpoints."""
_LOOKED_AT = 16


def detects(path: str) -> bool:
    """Whether this is such a checkpoint's directory or tensor file."""
    return os.path.lexists(os.path.join(path, TENSOR_FILE)) or os.path.basename(path) == TENSOR_FILE


def files(path: str) -> list[str]:
    """The file with the tensors of such a checkpoint, given as its directory or as that file."""
    return [tensor_file(path)]


def tensor_file(path: str) -> str:
    """The same, as one."""
    return os.path.join(path, TENSOR_FILE) if os.path.isdir(path) else path


def checkpoints(run: str) -> Iterator[RunCheckpoint]:
    """What of this kind a run's directory holds, finished or not, in no order. The directory of checkpoints counts."""
    for directory in (*(os.path.join(run, name) for name in facts.CHECKPOINTS_DIRECTORIES), run):
        for path, iteration in facts.iteration_directories(directory):
            yield RunCheckpoint(path, iteration)


def lacks(path: str) -> str | None:
    """What a checkpoint still lacks before it may be read, by its names; None for nothing.

    A manifest is written last: where others of the run have one, there is more to come.
    """
    file = tensor_file(path)
    if not os.path.lexists(file):
        return f"no {TENSOR_FILE}"
    directory, others = os.path.dirname(file), os.path.dirname(os.path.dirname(os.path.realpath(file)))
    if has_manifest(directory) or facts.directory_iteration(directory) is None:
        return None
    siblings = islice(facts.iteration_directories(others), _LOOKED_AT)
    others_have = any(has_manifest(path) for path, _ in siblings)
    return "no manifest, which others of the run have" if others_have else None


def read(path: str, *, parent: Parent | None = None, **options: Unpack[ReadOptions]) -> Checkpoint:
    """Read a checkpoint, given as its directory or its tensor file, opening that file once and reading it once.

    `parent` is what the run started from, where its config does not state it; refused where that contradicts it.

    Raises:
        NotFound, Refused and its subclasses, StorageError.
    """
    file = tensor_file(path)
    directory = os.path.dirname(file)
    if os.path.lexists(file):  # else it is not found
        checks.require_whole(lacks(path), path)
    manifest = find_entry(directory, os.path.basename(file))
    config = facts.read_run_config(directory)
    with open_torch_file(file) as opened:
        found = find_lora(opened.contents, file)
        stated = facts.mapping(opened.contents)
        shapes = {pair.module: pair.a.shape[0] for pair in found.pairs}
        sources = [
            facts.Source(f"checkpoint {TENSOR_FILE}: lora", facts.mapping(stated.get("lora"))),
            facts.Source("config config.json: lora", facts.mapping(config.data.get("lora"))),
        ]
        settings, alpha_source = facts.lora_settings(sources, shapes, options.get("alpha"), file)
        provenance = _provenance(config, facts.whole(stated.get("iteration")), directory, options, parent)
        size = opened.source.size
        report = options.get("progress")
        progress = None if report is None else lambda count: report(count, size)
        digest, tensors = opened.read([ref for pair in found.pairs for ref in (pair.a, pair.b)], progress)
    require_listed(manifest, file, digest)
    lora = Lora(settings, tuple(LoraPair(pair.module, tensors[pair.a], tensors[pair.b]) for pair in found.pairs))
    nonfinite = checks.nonfinite(_factors(lora), file, allowed=options.get("allow_nonfinite", False))
    zero_b = sum(is_zero(pair.b.contiguous()) for pair in lora.pairs)
    return Checkpoint(
        path=file,
        digest=digest,
        size=size,
        reader=NAME,
        manifest=manifest,
        lora=lora,
        alpha_source=alpha_source,
        provenance=provenance,
        stripped=found.stripped,
        aliases=found.aliases,
        nonfinite=nonfinite,
        zero_b=zero_b,
        served=facts.served_directory(directory),
        warnings=(
            *_unread(stated, config),
            *_warnings(found, lora, manifest, provenance, directory, nonfinite, zero_b),
        ),
    )


def _provenance(
    config: facts.RunConfig, iteration: int | None, directory: str, options: ReadOptions, parent: Parent | None
) -> Provenance:
    run, base, renamed = checks.stated_names(options)
    model = facts.mapping(config.data.get("model"))
    stated = facts.text(config.data.get("run_id"))
    if run is not None and stated is not None and run != stated:
        raise Refused(
            "the run's config states another name", path=config.path, key="run_id", found=stated, expected=run
        )
    start, source = checks.agreed_start(facts.digest(model.get("adapter")), parent, config.path, "model.adapter")
    rounding = facts.mapping(config.data.get("sync")).get("stochastic_rounding")
    return Provenance(
        run=stated or run,
        iteration=facts.directory_iteration(directory) if iteration is None else iteration,
        base=base if renamed else facts.text(model.get("base")) or base,
        base_revision=None if renamed else facts.text(model.get("revision")),
        warm_start=start,
        warm_start_source=source,
        resumed_from=facts.digest(facts.mapping(config.data.get("resume")).get("checkpoint")),
        stochastic_rounding=rounding if isinstance(rounding, bool) else None,
        config=config.digest,
    )


def _factors(lora: Lora) -> Iterator[tuple[str, Tensor]]:
    for pair in lora.pairs:
        yield f"{pair.module}.lora_A", pair.a
        yield f"{pair.module}.lora_B", pair.b


def _unread(stated: Mapping[str, Any], config: facts.RunConfig) -> Iterator[str]:
    """What is stated in a form that cannot be used: it is left out, and said so."""
    iteration = stated.get("iteration")
    if iteration is not None and facts.whole(iteration) is None:
        yield f"the checkpoint's iteration is no number: {shown(iteration)}"
    for path in (("model", "adapter"), ("resume", "checkpoint")):
        value = facts.mapping(config.data.get(path[0])).get(path[1])
        if value is not None and facts.digest(value) is None:
            yield f"{'.'.join(path)} in the run's config is no digest: {shown(value)}"


def _warnings(
    found: FoundLora,
    lora: Lora,
    manifest: ManifestEntry | None,
    provenance: Provenance,
    directory: str,
    nonfinite: int,
    zero_b: int,
) -> Iterator[str]:
    modules = len(lora.pairs)
    if manifest is None:
        yield "no manifest beside the checkpoint: nothing says which bytes the trainer wrote"
    yield from checks.zero_or_nonfinite(zero_b, modules, nonfinite)
    if found.beside:
        yield f"{found.beside} other tensors in {'.'.join(found.where) or 'the checkpoint'} are not part of the adapter"
    yield from checks.unmatched_patterns(lora.settings, (pair.module for pair in lora.pairs))
    named = facts.directory_iteration(directory)
    if named is not None and named != provenance.iteration:
        yield f"the directory says iteration {named}, the checkpoint {provenance.iteration}"
    if provenance.run is None:
        yield checks.UNKNOWN_RUN
