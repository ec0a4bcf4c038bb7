"""Merge: a base and an adapter become a model directory of their own, one tensor at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from registry.adapter.stored import read_adapter
from registry.core import jsontext
from registry.core.digest import Bytes, Digest
from registry.core.errors import IntegrityError, Refused, UnsupportedLora
from registry.core.layout import ADAPTER_FILES, CONFIG, WEIGHTS
from registry.core.version import VERSION
from registry.disk import OutputDirectory, blocks, hash_file, list_names, open_regular, read_small
from registry.operations import seal
from registry.served.plan import Plan, plan
from registry.served.recipes import RECIPES
from registry.served.runtime import calculating, conditions, require_torch, single_threaded, workers
from registry.served.shards import MergedModel
from registry.served.tied import CONFIG as MODEL_CONFIG
from registry.served.tied import read_config, untied
from registry.served.weights import INDEX, Weights, open_weights
from registry.store import Store

MERGE_MANIFEST = "merge-manifest.json"
FORMAT = 1
_NAMED = 10
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".npz", ".ot")
"""Weights in any format: they are the base's, and whoever found them beside the merged ones might load them."""
_NOT_OURS = frozenset({MERGE_MANIFEST, "served-weights.json", *ADAPTER_FILES})


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of `merge`: where the model lies, and its merge-manifest.json."""

    directory: str
    manifest: dict[str, Any]


def merge(
    store: Store,
    digest: Digest,
    base: str,
    to: str,
    recipe: str,
    *,
    now: str,
    progress: Callable[[int, int], None] | None = None,
) -> Merged:
    """Merge a stored adapter, verified, into a base and publish the model as the new directory `to`.

    Args:
        store: where the adapter lies.
        digest: the adapter.
        base: a directory with safetensors and config.json, or one safetensors file.
        to: the directory to make.
        recipe: one of RECIPES.
        now: the time, for the manifest.
        progress: called with the bytes of weights written since the last call, and their total.

    Raises:
        NotFound: no such adapter, or no such base.
        IntegrityError: the stored adapter is damaged.
        UnsupportedLora: something of the adapter has no place in the base, or cannot be merged here; it is named.
        OutputExists: the directory exists or appeared meanwhile.
        Refused: a merged weight is infinite or NaN, or torch is missing.
        MalformedFile, StorageError: the base cannot be read.
    """
    if recipe not in RECIPES:
        raise Refused("no such recipe", found=recipe, expected=" or ".join(RECIPES))
    require_torch()
    files = seal.read_seal(store, digest).files
    config = seal.read(store, digest, CONFIG)
    if Digest(hashlib.sha256(config).hexdigest()) != files[CONFIG]:
        raise IntegrityError("stored bytes do not match their digest", path=CONFIG, key=str(digest), hint=seal.REPAIR)
    with seal.opened(store, digest, WEIGHTS) as file, open_weights(base) as weights:
        if (found := hash_file(file)) != digest:
            raise IntegrityError(
                "stored bytes do not match their digest", path=WEIGHTS, found=found, expected=digest, hint=seal.REPAIR
            )
        contents = read_adapter(file, config)
        planned = plan(contents, weights)
        require_whole(planned, digest)
        names = [os.path.basename(path) for path in weights.files]
        side = _side_files(base)
        with OutputDirectory(to, [*names, *side, MERGE_MANIFEST]) as output, single_threaded():
            base_files, written = _write_weights(output, weights, planned, recipe, progress)
            for name, chunks in _side(base, side, weights, planned):
                written[jsontext.sayable(name)] = _write(output, name, chunks)
            manifest = {
                "format": FORMAT,
                "adapter": {"digest": digest.hex, "config_sha256": files[CONFIG].hex},
                "base": {"path": jsontext.sayable(weights.path), "files": base_files},
                "recipe": recipe,
                "names": str(planned.prefix),
                "tensors": {
                    "changed": len(planned.changes),
                    "copied": len(weights.tensors) + len(planned.added) - len(planned.changes),
                },
                "untied": None if planned.untied is None else [planned.untied.embedding, planned.untied.head],
                "conditions": conditions(),
                "files": written,
                "versions": {"aorlta-registry": VERSION},
                "merged_at": now,
            }
            output.files.write(MERGE_MANIFEST, [jsontext.pretty(manifest)])
            output.publish(durable=False)
    return Merged(output.path, manifest)


def require_whole(planned: Plan, digest: Digest) -> None:
    """Refuse a plan that would leave out a part of the adapter.

    Raises:
        UnsupportedLora: naming what.
    """
    for problem, names in (
        ("the base does not have all that the adapter changes", planned.unmatched),
        ("merging does not support all of this adapter", planned.unsupported),
    ):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise UnsupportedLora(problem, key=str(digest), found="; ".join(names[:_NAMED]) + more)


@calculating()
def _write_weights(
    output: OutputDirectory,
    weights: Weights,
    planned: Plan,
    recipe: str,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Write every file of weights; the sha256 of the base's files and of the written ones, by sayable name."""
    total = sum(stored.entry.nbytes for stored in weights.tensors.values())
    model = MergedModel(weights, planned, recipe)
    before, after = {}, {}
    for path in weights.files:
        name, hasher = os.path.basename(path), hashlib.sha256()
        said = jsontext.sayable(name)
        chunks = _ahead(model.file(path, hasher.update))
        after[said] = _write(output, name, chunks if progress is None else _counted(chunks, progress, total))
        before[said] = hasher.hexdigest()
    return before, after


def _ahead(chunks: Iterator[memoryview]) -> Iterator[memoryview]:
    """The same chunks, the next one being made in another thread while the caller writes the last one."""
    with workers(1) as pool:
        upcoming = pool.submit(next, chunks, None)
        while (chunk := upcoming.result()) is not None:
            upcoming = pool.submit(next, chunks, None)
            yield chunk


def _counted(chunks: Iterator[memoryview], progress: Callable[[int, int], None], total: int) -> Iterator[memoryview]:
    for chunk in chunks:
        yield chunk
        progress(len(chunk), total)


def _write(output: OutputDirectory, name: str, chunks: Iterable[Bytes]) -> str:
    hasher = hashlib.sha256()

    def hashed() -> Iterator[Bytes]:
        for chunk in chunks:
            hasher.update(chunk)
            yield chunk

    output.files.write(name, hashed())
    return hasher.hexdigest()


def _side_files(base: str) -> list[str]:
    """The files beside the weights that belong to the model: config, tokenizer, index, licence; no directories."""
    if not os.path.isdir(base):
        return []
    return [
        name
        for name in list_names(base)
        if not name.startswith(".")
        and name not in _NOT_OURS
        and not name.endswith((*_NOT_COPIED, ".index.json"))
        and os.path.isfile(os.path.join(base, name))
    ] + [INDEX] * os.path.isfile(os.path.join(base, INDEX))


def _side(base: str, names: Iterable[str], weights: Weights, planned: Plan) -> Iterator[tuple[str, Iterable[Bytes]]]:
    """The side files' bytes: unchanged, but for what says that two weights are tied which no longer are."""
    for name in names:
        path = os.path.join(base, name)
        if name == MODEL_CONFIG and planned.untied is not None:
            yield name, [jsontext.pretty(untied(read_config(path)))]
        elif name == INDEX and planned.added:
            yield name, [jsontext.pretty(_extended_index(path, weights, planned))]
        else:
            with open_regular(path) as file:
                yield name, blocks(file)


def _extended_index(path: str, weights: Weights, planned: Plan) -> dict[str, Any]:
    index: dict[str, Any] = jsontext.parse(read_small(path), path)
    for name, source in planned.added.items():
        index["weight_map"][name] = index["weight_map"][source]
        metadata = index.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("total_size"), int):
            metadata["total_size"] += weights.entry(source).nbytes
    return index
