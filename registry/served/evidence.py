"""What engines were served for one iteration: their tensors, or the digests of them (DESIGN 4.5)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, MalformedFile, NotFound, shown
from registry.disk import list_names, open_regular, read_small
from registry.disk.safetensors import read_header
from registry.served.names import bare
from registry.served.weights import INDEX, Weights, open_files, open_weights

_LISTING = re.compile(r"served-weights.*\.json")
_STATED: dict[str, type] = {"iteration": int, "rounding": str, "device": str, "threads": int, "dtype": str}
_CHARACTERS, _BITS = 200, 63  # the most of a name or value that every record of a comparison repeats


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

    In a directory every `served-weights*.json` is an engine, and so are the shards that an index lists. All further
    safetensors files are one engine if distinct tensor names make them shards of one model, and one engine each if
    they repeat tensor names, be it under another known prefix.

    Raises:
        NotFound: a path is not there, or a directory holds no evidence.
        MalformedFile: a file is damaged.
    """
    with ExitStack() as stack:
        engines: list[Engine] = []
        for path in paths:
            before = len(engines)
            for file, engine in _engines(os.path.abspath(path), stack):
                engines.append(_named(engine, engines, file))
            if len(engines) == before:
                raise NotFound("no served weights: neither *.safetensors nor served-weights.json", path=path)
        yield engines


def _engines(path: str, stack: ExitStack) -> Iterator[tuple[str, Engine]]:
    """Each engine under one path, its files opened in `stack`, with one file that it was found in."""
    if not os.path.isdir(path):
        yield path, _listing(path) if path.endswith(".json") else _served(_stem(path), open_files(path, [path]), stack)
        return
    names, whole = list_names(path), os.path.basename(path)
    for listing in (os.path.join(path, name) for name in names if _LISTING.fullmatch(name)):
        yield listing, _listing(listing)
    files = [os.path.join(path, name) for name in names if name.endswith(".safetensors")]
    if INDEX in names:
        weights = stack.enter_context(open_weights(path))
        yield os.path.join(path, INDEX), Engine(whole, weights, {}, {})
        files = [file for file in files if file not in weights.files]
    if len(files) > 1 and _are_shards(files):
        yield files[0], _served(whole, open_files(path, files), stack)
    else:
        for file in files:
            yield file, _served(_stem(file), open_files(path, [file]), stack)


def _served(name: str, opening: AbstractContextManager[Weights], stack: ExitStack) -> Engine:
    return Engine(name, stack.enter_context(opening), {}, {})


def _are_shards(files: Sequence[str]) -> bool:
    seen: set[str] = set()
    for path in files:
        with open_regular(path) as file:
            names = {bare(name) for name in read_header(file).tensors}
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
    if name is engine:
        _require_short("engine", name, path)
    stated = {key: document[key] for key in _STATED if document.get(key) is not None}
    for key, value in stated.items():
        if type(value) is not _STATED[key]:
            expected = _STATED[key].__name__
            raise MalformedFile("of the wrong type", path=path, key=key, found=shown(value), expected=expected)
        _require_short(key, value, path)
    return Engine(name, None, listed, stated)


def _require_short(key: str, value: Any, path: str) -> None:
    """Refuse a text or number that would make a record of the comparison large, or unreadable."""
    if isinstance(value, int):
        if value.bit_length() > _BITS:
            raise MalformedFile("too large", path=path, key=key, found=shown(value), expected=f"at most {_BITS} bits")
    elif len(value) > _CHARACTERS or not value.isprintable():
        expected = f"at most {_CHARACTERS} printable characters"
        raise MalformedFile("too long, or not printable", path=path, key=key, found=shown(value), expected=expected)


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
