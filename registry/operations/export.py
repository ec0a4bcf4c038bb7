"""Export: one checkpoint into one adapter, written out of sight and read back before anyone can see it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from registry.adapter import Found, Weights, adapter_config, encode, export_manifest, lay_out, named, tensor_digest
from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import IntegrityError
from registry.core.layout import ADAPTER_FILES, CONFIG, MANIFEST, WEIGHTS
from registry.core.model import Checkpoint
from registry.core.peft_config import function
from registry.core.tensor import Tensor
from registry.core.version import VERSION
from registry.disk import Comparison, OutputDirectory, hash_file
from registry.store import Files


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """An adapter that is ready to be written: its parts, and the digests they will have."""

    checkpoint: Checkpoint
    weights: Weights
    digest: Digest
    tensors: Digest
    config: bytes

    def named_tensors(self) -> Mapping[str, Tensor]:
        """The tensors by their keys in the file."""
        peft = self.checkpoint.peft
        return named(self.checkpoint.lora) if peft is None else peft.tensors


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of `export`: where the adapter lies and its manifest."""

    directory: str
    digest: Digest
    manifest: dict[str, Any]


def prepare(checkpoint: Checkpoint) -> Export:
    """Lay the adapter out in memory and compute its identities, on two cores: nothing is written.

    The bytes of an adapter that was one already stay what they are, unless something in it had to be changed.
    """
    peft = checkpoint.peft
    if peft is None:
        weights: Weights = encode(checkpoint.lora)
        config = adapter_config(checkpoint.lora, checkpoint.provenance)
    elif peft.file is None:
        weights, config = lay_out(peft.tensors, function(peft.contents.config)), peft.config
    else:
        weights, config = Found(peft.file), peft.config
    with ThreadPoolExecutor(1) as pool:
        digest = None if isinstance(weights, Found) else pool.submit(_digest, weights)
        tensors = tensor_digest(checkpoint.lora, () if peft is None else peft.contents.extras())
    # The bytes of a file that is kept were hashed as they were read.
    return Export(checkpoint, weights, checkpoint.digest if digest is None else digest.result(), tensors, config)


def write(export: Export, files: Files, manifest: dict[str, Any]) -> None:
    """Write the three files durably, and read the weights back.

    Reading back catches what the memory, this program or the kernel's page cache did to the bytes on their way; it goes
    on while the disk is still busy with them.

    Raises:
        IntegrityError: what landed is not what the checkpoint holds, or does not have the digest that was computed.
    """
    files.write(WEIGHTS, export.weights.chunks())
    files.write(CONFIG, [export.config])
    files.write(MANIFEST, [jsontext.pretty(manifest)])
    with ThreadPoolExecutor(1) as pool:
        synced = pool.submit(files.sync)
        _read_back(export, files)
        synced.result()


def _read_back(export: Export, files: Files) -> None:
    with files.open(WEIGHTS) as landed:
        compare = Comparison(export.weights.chunks(), WEIGHTS)
        digest = hash_file(landed, compare)
        compare.finish()
    if digest != export.digest:
        raise IntegrityError("the written file has another digest", key=WEIGHTS, found=digest, expected=export.digest)


def manifest_of(export: Export, config: bytes, exported_at: str) -> dict[str, Any]:
    """The manifest of an export whose adapter has the config text `config`."""
    return export_manifest(
        export.checkpoint,
        weights=(export.digest, export.weights.size),
        config=(Digest(hashlib.sha256(config).hexdigest()), len(config)),
        tensors=export.tensors,
        versions={"aorlta-registry": VERSION, "python": platform.python_version(), **_trainers(export.checkpoint)},
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
        manifest = manifest_of(export, export.config, exported_at)
        write(export, output.files, manifest)
        output.publish()
    return Exported(output.path, export.digest, manifest)


def _trainers(checkpoint: Checkpoint) -> dict[str, str]:
    """The version of peft that saved the adapter, where it says so."""
    stated = None if checkpoint.peft is None else checkpoint.peft.contents.config.get("peft_version")
    return {"peft": stated} if isinstance(stated, str) else {}


def _digest(weights: Weights) -> Digest:
    hasher = hashlib.sha256()
    for chunk in weights.chunks():
        hasher.update(chunk)
    return Digest(hasher.hexdigest())
