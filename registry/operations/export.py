"""Export: one checkpoint into one adapter, written to a stage and read back before anyone can see it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from registry.adapter import Weights, adapter_config, encode, export_manifest, tensor_digest
from registry.core import jsontext
from registry.core.digest import Bytes, Digest
from registry.core.errors import IntegrityError
from registry.core.model import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS, Checkpoint
from registry.core.version import VERSION
from registry.disk import Comparison, OutputDirectory, hash_file


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """An adapter that is ready to be written: its parts, and the digests they will have."""

    checkpoint: Checkpoint
    weights: Weights
    digest: Digest
    tensors: Digest
    config: bytes


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of `export`: where the adapter lies and its manifest."""

    directory: str
    digest: Digest
    manifest: dict[str, Any]


class Stage(Protocol):
    """Where an adapter is written before it is published: in a store, or beside an output directory."""

    def write(self, name: str, chunks: Iterable[Bytes]) -> int: ...

    def open(self, name: str) -> BinaryIO: ...


def prepare(checkpoint: Checkpoint) -> Export:
    """Lay the adapter out in memory and compute its identities, on two cores: nothing is written."""
    weights = encode(checkpoint.lora)
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(_digest, weights)
        tensors = tensor_digest(checkpoint.lora)
    config = adapter_config(checkpoint.lora, checkpoint.provenance)
    return Export(checkpoint, weights, digest.result(), tensors, config)


def write(export: Export, stage: Stage, exported_at: str) -> dict[str, Any]:
    """Write the three files, read the weights back from the disk, and return the manifest.

    Raises:
        IntegrityError: what landed is not what the checkpoint holds, or does not have the digest that was computed.
    """
    stage.write(WEIGHTS, export.weights.chunks())
    with stage.open(WEIGHTS) as landed:
        compare = Comparison(export.weights.chunks(), WEIGHTS)
        digest = hash_file(landed, compare)
        compare.finish()
    if digest != export.digest:
        raise IntegrityError("the written file has another digest", key=WEIGHTS, found=digest, expected=export.digest)
    stage.write(CONFIG, [export.config])
    manifest = manifest_of(export, export.config, exported_at)
    stage.write(MANIFEST, [jsontext.pretty(manifest)])
    return manifest


def manifest_of(export: Export, config: bytes, exported_at: str) -> dict[str, Any]:
    """The manifest of an export whose adapter has the config text `config`."""
    return export_manifest(
        export.checkpoint,
        weights=(export.digest, export.weights.size),
        config=(Digest(hashlib.sha256(config).hexdigest()), len(config)),
        tensors=export.tensors,
        versions={"aorlta-registry": VERSION, "python": platform.python_version()},
        exported_at=exported_at,
    )


def export_to(read: Callable[[], Checkpoint], directory: str, exported_at: str) -> Exported:
    """Export into a new directory. The name is reserved before the checkpoint is read.

    Raises:
        OutputExists: the directory exists or appeared meanwhile; what was made stays in `<directory>.partial`.
        As `read`, and IntegrityError as `write`.
    """
    with OutputDirectory(directory, ADAPTER_FILES) as output:
        export = prepare(read())
        manifest = write(export, output, exported_at)
        output.publish()
    return Exported(output.path, export.digest, manifest)


def _digest(weights: Weights) -> Digest:
    hasher = hashlib.sha256()
    for chunk in weights.chunks():
        hasher.update(chunk)
    return Digest(hasher.hexdigest())
