"""Named tensors over one or more safetensors files: a base model, or the weights that one engine was served."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from registry.core import jsontext
from registry.core.errors import MalformedFile, NotFound, Refused
from registry.disk import list_names, open_regular, read_small
from registry.disk.safetensors import Entry, read_header, read_into

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor and the open file that holds it."""

    file: BinaryIO
    entry: Entry


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors by name, each in one of the open `files`."""

    path: str
    files: Mapping[str, BinaryIO]
    tensors: Mapping[str, Stored]

    def read(self, name: str, buffer: memoryview) -> None:
        """Fill `buffer`, which must have the tensor's length in bytes.

        Raises:
            MalformedFile, StorageError.
        """
        stored = self.tensors[name]
        read_into(stored.file, stored.entry, buffer)

    def entry(self, name: str) -> Entry:
        """Type, shape and place of a tensor."""
        return self.tensors[name].entry


@contextmanager
def open_weights(path: str) -> Iterator[Weights]:
    """Open a model's weights: one safetensors file, or a directory with one, or with shards and their index.

    Raises:
        NotFound: nothing there, or no weights in the directory.
        MalformedFile: a damaged file, a shard or tensor that the index lists and that is missing or elsewhere, a tensor
            that it does not list, or a tensor twice.
        Refused: several files and no index to say that they belong together.
    """
    root = os.path.abspath(path)
    names = list_names(root) if os.path.isdir(root) else []
    if INDEX not in names:
        with open_files(path, [_only_file(root, names)]) as weights:
            yield weights
        return
    index = os.path.join(root, INDEX)
    shards = _read_index(index, names)
    with open_files(path, [os.path.join(root, shard) for shard in sorted(set(shards.values()))]) as weights:
        _require_indexed(weights, shards, index)
        yield weights


@contextmanager
def open_files(path: str, files: Sequence[str]) -> Iterator[Weights]:
    """Open the tensors of all `files` as one set.

    Raises:
        MalformedFile: as `read_header`, or a tensor that stands in two of them.
    """
    with ExitStack() as stack:
        opened: dict[str, BinaryIO] = {}
        tensors: dict[str, Stored] = {}
        for file_path in files:
            opened[file_path] = file = stack.enter_context(open_regular(file_path))
            for name, entry in read_header(file).tensors.items():
                if name in tensors:
                    raise MalformedFile("a tensor stands in two files", path=file_path, key=name)
                tensors[name] = Stored(file, entry)
        yield Weights(path, opened, tensors)


def _only_file(root: str, names: Sequence[str]) -> str:
    """The file at `root`, or the one in this directory of these `names` that a model without an index is."""
    if not os.path.isdir(root):
        return root
    if SINGLE in names:
        return os.path.join(root, SINGLE)
    found = [name for name in names if name.endswith(_SUFFIX)]
    if not found:
        raise NotFound("no safetensors files in the directory", path=root)
    if len(found) > 1:
        raise Refused("several safetensors files and no index", path=root, found=", ".join(found), expected=INDEX)
    return os.path.join(root, found[0])


def _read_index(path: str, names: Sequence[str]) -> dict[str, str]:
    """Shard by tensor, from the index of a directory of these `names`."""
    index: Any = jsontext.parse(read_small(path), path)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise MalformedFile("no weight_map from tensor to file", path=path)
    missing = sorted(set(shards.values()) - set(names))
    if missing:
        raise MalformedFile("a shard is missing", path=path, found=", ".join(missing[:5]))
    return shards


def _require_indexed(weights: Weights, shards: Mapping[str, str], index: str) -> None:
    """Refuse shards that hold other tensors than the index says: it or they are of another model."""
    held = {name: os.path.basename(stored.file.name) for name, stored in weights.tensors.items()}
    for name, shard in shards.items():
        if name not in held:
            raise MalformedFile("no shard has this tensor of the index", path=index, key=name, expected=shard)
        if held[name] != shard:
            raise MalformedFile(
                "in another shard than the index says", path=index, key=name, found=held[name], expected=shard
            )
    unlisted = sorted(held.keys() - shards.keys())
    if unlisted:
        raise MalformedFile("the index does not list this tensor", path=index, key=unlisted[0], found=held[unlisted[0]])
