"""What engines were served for one iteration: their tensors, or the digests of them (DESIGN 4.5)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, MalformedFile, NotFound, shown
from registry.disk import list_names, open_regular, read_small
from registry.disk.safetensors import read_header
from registry.served.weights import INDEX, Weights, model_files, open_files

_LISTING = re.compile(r"served-weights.*\.json")
_STATED: dict[str, type] = {"iteration": int, "rounding": str, "device": str, "threads": int, "dtype": str}


@dataclass(frozen=True, slots=True)
class Listed:
    """A served tensor of which only the digest is known."""

    digest: Digest
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, which has either `weights` or a listing.

    Attributes:
        name: what the listing calls it, or the file's or directory's name.
        weights: the served tensors.
        listed: digests and shapes by tensor name.
        stated: what the listing says of iteration, rounding, device, threads and dtype.
    """

    name: str
    weights: Weights | None
    listed: Mapping[str, Listed]
    stated: Mapping[str, Any]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape by tensor name."""
        if self.weights is None:
            return {name: listed.shape for name, listed in self.listed.items()}
        return {name: stored.entry.shape for name, stored in self.weights.tensors.items()}


@contextmanager
def open_engines(paths: Sequence[str]) -> Iterator[list[Engine]]:
    """Open all evidence: each path is a file, or a directory of one iteration with one or several engines.

    In a directory every `served-weights*.json` is an engine. Its safetensors files are one engine if an index or
    distinct tensor names make them shards of one model, and one engine each if they repeat tensor names.

    Raises:
        NotFound: a path is not there, or a directory holds no evidence.
        MalformedFile: a file is damaged.
    """
    with ExitStack() as stack:
        engines: list[Engine] = []
        for path in paths:
            for name, files in _sources(os.path.abspath(path)):
                if files[0].endswith(".json"):
                    engine = _listing(files[0])
                else:
                    weights = stack.enter_context(open_files(path, files))
                    engine = Engine(name, weights, {}, {})
                engines.append(_named(engine, engines, files[0]))
        yield engines


def _sources(path: str) -> list[tuple[str, list[str]]]:
    """Engine name and files, for each engine under one path."""
    if not os.path.isdir(path):
        return [(_stem(path), [path])]
    names = list_names(path)
    sources = [("", [os.path.join(path, name)]) for name in names if _LISTING.fullmatch(name)]
    if INDEX in names:
        return [*sources, (os.path.basename(path), model_files(path))]
    files = [os.path.join(path, name) for name in names if name.endswith(".safetensors")]
    if len(files) > 1 and _are_shards(files):
        sources.append((os.path.basename(path), files))
    else:
        sources += [(_stem(file), [file]) for file in files]
    if not sources:
        raise NotFound("no served weights: neither *.safetensors nor served-weights.json", path=path)
    return sources


def _are_shards(files: Sequence[str]) -> bool:
    seen: set[str] = set()
    for path in files:
        with open_regular(path) as file:
            names = read_header(file).tensors.keys()
        if not seen.isdisjoint(names):
            return False
        seen |= names
    return True


def _listing(path: str) -> Engine:
    document = jsontext.parse(read_small(path, limit=256 << 20), path)
    tensors = document.get("tensors") if isinstance(document, dict) else None
    if not isinstance(tensors, dict) or not tensors:
        raise MalformedFile("lists no tensors", path=path, key="tensors")
    listed = {name: _listed(name, value, path) for name, value in tensors.items()}
    engine = document.get("engine")
    name = engine if isinstance(engine, str) and engine else _stem(path)
    stated = {key: document[key] for key in _STATED if document.get(key) is not None}
    for key, value in stated.items():
        if type(value) is not _STATED[key]:
            expected = _STATED[key].__name__
            raise MalformedFile("of the wrong type", path=path, key=key, found=shown(value), expected=expected)
    return Engine(name, None, listed, stated)


def _listed(name: str, value: Any, path: str) -> Listed:
    match value:
        case {"sha256": str(digest), "shape": list(shape)} if all(type(size) is int and size >= 0 for size in shape):
            pass
        case _:
            raise MalformedFile("gives no sha256 and shape", path=path, key=name)
    try:
        return Listed(Digest.parse(digest), tuple(shape))
    except InvalidReference as error:
        raise MalformedFile("gives no sha256", path=path, key=name, found=digest) from error


def _named(engine: Engine, others: Sequence[Engine], file: str) -> Engine:
    """`engine` under a name of its own."""
    name, file = jsontext.sayable(engine.name), jsontext.sayable(file)
    taken = {other.name for other in others}
    numbered = (f"{name} ({file}, {number})" for number in range(2, len(taken) + 2))
    names = (name, f"{name} ({file})", *numbered)
    return replace(engine, name=next(each for each in names if each not in taken))


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
