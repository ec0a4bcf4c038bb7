"""The aorlta checkpoint: RUN_DIR/ckpt/iter-<n>/trainer.pt beside its manifest (DESIGN 4.1)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Unpack

from registry.checkpoints import facts
from registry.checkpoints.lora_keys import FoundLora, find_lora
from registry.checkpoints.manifests import find_entry
from registry.checkpoints.torchfile import open_torch_file
from registry.core.errors import ManifestMismatch, NotFound, Refused, UnsupportedLora, shown
from registry.core.model import Checkpoint, Lora, LoraPair, ManifestEntry, Parent, Provenance, ReadOptions
from registry.core.patterns import matching
from registry.core.tensor import count_nonfinite, is_zero
from registry.disk import holds_safetensors, translated

READER = "aorlta"
TENSOR_FILE = "trainer.pt"


def read_checkpoint(path: str, *, parent: Parent | None = None, **options: Unpack[ReadOptions]) -> Checkpoint:
    """Read a checkpoint, given as its directory or its tensor file, opening that file once and reading it once.

    `parent` is what the run started from, where its config does not state it; refused where that contradicts it.

    Raises:
        NotFound, Refused and its subclasses, StorageError.
    """
    file = tensor_file(path)
    directory = os.path.dirname(file)
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
    if manifest is not None and manifest.expected != digest:
        raise ManifestMismatch(
            f"differs from what {manifest.name} lists", path=file, found=digest, expected=manifest.expected
        )
    lora = Lora(settings, tuple(LoraPair(pair.module, tensors[pair.a], tensors[pair.b]) for pair in found.pairs))
    nonfinite = _nonfinite(lora, file, allowed=options.get("allow_nonfinite", False))
    zero_b = sum(is_zero(pair.b.contiguous()) for pair in lora.pairs)
    return Checkpoint(
        path=file,
        digest=digest,
        size=size,
        reader=READER,
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


def tensor_file(path: str) -> str:
    """The file with the tensors of a checkpoint, given as its directory or as that file.

    Raises:
        NotFound: the directory holds none.
    """
    absolute = os.path.abspath(path)
    if not os.path.isdir(absolute):
        return absolute
    file = os.path.join(absolute, TENSOR_FILE)
    with translated(file), suppress(FileNotFoundError):
        os.lstat(file)
        return file
    inside = os.path.join(absolute, "ckpt")
    hint = f"It looks like a run: name one of the checkpoints in {inside}" if os.path.isdir(inside) else None
    raise NotFound(f"the directory holds no {TENSOR_FILE}", path=absolute, hint=hint)


def _provenance(
    config: facts.RunConfig, iteration: int | None, directory: str, options: ReadOptions, parent: Parent | None
) -> Provenance:
    run, base = options.get("run"), options.get("base")
    renamed = base is not None and not holds_safetensors(base)
    for name in (run, base):
        if name is not None and not name.isprintable():
            raise Refused("not a printable name", found=shown(name))
    model = facts.mapping(config.data.get("model"))
    stated = facts.text(config.data.get("run_id"))
    if run is not None and stated is not None and run != stated:
        raise Refused(
            "the run's config states another name", path=config.path, key="run_id", found=stated, expected=run
        )
    start = facts.digest(model.get("adapter"))
    if parent is not None and start not in (None, parent.digest, parent.tensors):
        raise Refused(
            "the run's config states another start",
            path=config.path,
            key="model.adapter",
            found=start,
            expected=parent.digest,
        )
    source = None if start is None else "config"
    if parent is not None and start != parent.digest:
        start, source = parent.digest, "option"
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


def _nonfinite(lora: Lora, path: str, *, allowed: bool) -> int:
    counts = {
        f"{pair.module}.lora_{name}": count
        for pair in lora.pairs
        for name, tensor in (("A", pair.a), ("B", pair.b))
        if (count := count_nonfinite(tensor.contiguous(), tensor.dtype))
    }
    if counts and not allowed:
        key, count = next(iter(counts.items()))
        raise UnsupportedLora(
            f"{sum(counts.values())} elements in {len(counts)} tensors are infinite or NaN",
            path=path,
            key=key,
            found=f"{count} in this one",
            hint="The training run has probably diverged; --allow-nonfinite exports it all the same",
        )
    return sum(counts.values())


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
    if zero_b == modules:
        yield f"every lora_B is zero ({modules} of {modules}): this adapter changes nothing"
    if nonfinite:
        yield f"{nonfinite} elements are infinite or NaN"
    if found.beside:
        yield f"{found.beside} other tensors in {'.'.join(found.where) or 'the checkpoint'} are not part of the adapter"
    for name, pattern in (("rank_pattern", lora.settings.rank_pattern), ("alpha_pattern", lora.settings.alpha_pattern)):
        for key, _ in pattern:
            if not any(matching(pair.module, ((key, None),)) for pair in lora.pairs):
                yield f"{name} {key!r} matches no module"
    named = facts.directory_iteration(directory)
    if named is not None and named != provenance.iteration:
        yield f"the directory says iteration {named}, the checkpoint {provenance.iteration}"
    if provenance.run is None:
        yield "the run is not known: give it with --run"
