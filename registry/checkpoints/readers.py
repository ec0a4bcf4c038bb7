"""Which reader understands a path. A new reader is a module with what `Reader` asks for, and a place in `READERS`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, Unpack

from registry.checkpoints import aorlta, layouts, peft_directory, shards
from registry.checkpoints.manifests import find_listed
from registry.checkpoints.shards import digest_of
from registry.checkpoints.unjoined import refusal
from registry.core.digest import Digest
from registry.core.errors import NotFound, Refused, RegistryError, UnsupportedLora
from registry.core.model import Checkpoint, Parent, ReadOptions, RunCheckpoint
from registry.disk import hash_file, open_regular, translated


class Reader(Protocol):
    """One kind of checkpoint.

    Attributes:
        NAME: what manifests call it.
        LOOKS_FOR: the file by which it knows its own, for messages.
    """

    NAME: str
    LOOKS_FOR: str

    def detects(self, path: str) -> bool:
        """Whether a directory, or one file, is of this kind. Opens nothing, and is quick."""
        ...

    def checkpoints(self, run: str) -> Iterator[RunCheckpoint]:
        """What of this kind a run's directory holds, finished or not, in no order. Opens nothing."""
        ...

    def lacks(self, path: str) -> str | None:
        """What a checkpoint still lacks before it may be read, a clause, as its names show; None for nothing."""
        ...

    def files(self, path: str) -> list[str]:
        """The files with the tensors of what was detected, by whose digests it is known; mostly one.

        Raises:
            Refused: there is none.
        """
        ...

    def read(self, path: str, *, parent: Parent | None = None, **options: Unpack[ReadOptions]) -> Checkpoint:
        """Read what was detected. The file of the tensors is opened once, and read once.

        `parent` is what the run started from, where no file beside it says so; refused where one says otherwise.

        Raises:
            NotFound, Refused and its subclasses, StorageError.
        """
        ...


READERS: tuple[Reader, ...] = (aorlta, peft_directory, shards)
_DEEPEST = 3
_MOST_DIRECTORIES = 4096
_LISTED = 10


def read_checkpoint(path: str, *, parent: Parent | None = None, **options: Unpack[ReadOptions]) -> Checkpoint:
    """Read a checkpoint or a PEFT adapter, given as its directory or its tensor file.

    Where a directory is neither, the one PEFT adapter in its subfolders is taken.

    Raises:
        NotFound: there is none.
        Refused: it could be several things; otherwise as `Reader.read`.
        StorageError.
    """
    reader, place = _place(os.path.abspath(path))
    read = reader.read(place, parent=parent, **options)
    if place == os.path.abspath(path):
        return read
    taken = f"taken from the subfolder {os.path.relpath(place, path)}"
    return replace(read, warnings=(taken, *read.warnings))


def identify(path: str) -> tuple[str, Digest]:
    """The file with the tensors of what `read_checkpoint` would read, or their directory, and the digest that it has.

    Raises as `read_checkpoint`.
    """
    reader, place = _place(os.path.abspath(path))
    files = reader.files(place)
    digests: dict[str, Digest] = {}
    for file in files:
        with open_regular(file) as opened:
            digests[file] = hash_file(opened)
    return (files[0], digests[files[0]]) if len(files) == 1 else (os.path.dirname(files[0]), digest_of(digests))


def run_checkpoints(path: str) -> list[RunCheckpoint]:
    """The checkpoints of a run, by step; none where a directory is no run.

    Raises:
        Refused: they are of more than one kind.
    """
    found = {reader.NAME: listed for reader in READERS if (listed := list(reader.checkpoints(path)))}
    if len(found) > 1 and aorlta.NAME in found:  # the others are verl's, which saves with an adapter or without
        raise Refused("checkpoints of more than one kind in one run", path=path, found=", ".join(sorted(found)))
    return sorted((each for listed in found.values() for each in listed), key=lambda each: (each.step, each.path))


def is_checkpoint(path: str) -> bool:
    """Whether a path is itself a checkpoint. A run can be one too: trainers save the last adapter beside the others."""
    return any(reader.detects(os.path.abspath(path)) for reader in READERS)


def lacks(path: str) -> str | None:
    """What a checkpoint of a run still lacks before it may be read, a clause, as its names show; None for nothing.

    Raises:
        StorageError: one may not look.
    """
    absolute = os.path.abspath(path)
    detected = [reader for reader in READERS if reader.detects(absolute)]
    if not detected and os.path.isdir(absolute):
        _require_searchable(absolute)
    return next((lack for reader in detected if (lack := reader.lacks(absolute))), None if detected else "no tensors")


def listed_digest(path: str) -> tuple[str, Digest | None, int]:
    """The tensor file of a checkpoint, the digest that a manifest beside it lists for it, and its size in bytes.

    The digest is what somebody wrote down, not what the bytes are; None where nobody did. Raises as `read_checkpoint`.
    """
    reader, place = _place(os.path.abspath(path))
    files = reader.files(place)
    size = 0
    for file in files:
        with translated(file):
            size += os.stat(file).st_size
    if len(files) > 1:
        return os.path.dirname(files[0]), None, size
    listed = find_listed(os.path.dirname(files[0]), os.path.basename(files[0]))
    return files[0], None if listed is None else listed.expected, size


def signature(path: str) -> tuple[tuple[str, int, int], ...]:
    """How the files of a checkpoint look: path, size in bytes and time of change, as deep as adapters are found.

    While a trainer is writing them, they look otherwise from one look to the next.
    """
    found = []
    for directory in (path, *_directories(path)):
        for entry in _entries(directory):
            try:
                status = entry.stat()
            except OSError:  # it has just gone
                continue
            found.append((entry.path, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


def tensor_files(path: str) -> list[str]:
    """The files with the tensors of what `read_checkpoint` would read. Raises as that."""
    reader, place = _place(os.path.abspath(path))
    return reader.files(place)


def tensor_size(path: str) -> int:
    """The size in bytes of a checkpoint's tensor file; 0 where there is none yet."""
    try:
        return listed_digest(path)[2]
    except RegistryError:
        return 0


def _place(absolute: str) -> tuple[Reader, str]:
    """The reader, and the directory or file that is for it."""
    found = [reader for reader in READERS if reader.detects(absolute)]
    if len(found) > 1:
        raise Refused(
            "more than one kind of checkpoint in one directory",
            path=absolute,
            found=", ".join(reader.LOOKS_FOR for reader in found),
            hint="Name the file that is meant",
        )
    if found:
        return found[0], absolute
    if not os.path.isdir(absolute):
        return aorlta, absolute  # its tensor file may have any name
    _require_searchable(absolute)
    inside = os.path.join(absolute, aorlta.CHECKPOINTS)
    if os.path.isdir(inside):
        raise _nothing(absolute, f"It looks like a run: name one of the checkpoints in {inside}")
    return peft_directory, _adapter_below(absolute)


def _require_searchable(directory: str) -> None:
    """Or what is in it would be taken for missing."""
    file = os.path.join(directory, aorlta.LOOKS_FOR)
    with translated(file), suppress(FileNotFoundError):
        os.lstat(file)


def _adapter_below(directory: str) -> str:
    below = sorted(each for each in _directories(directory) if peft_directory.is_whole(each))
    if not below:
        own = layouts.own_form(directory)
        if own is not None:
            raise UnsupportedLora("the only LoRA here is in its trainer's own form", path=own[0], found=own[1])
        raise refusal((directory, *_directories(directory))) or _nothing(directory, None)
    if len(below) > 1:
        names = [os.path.relpath(each, directory) for each in below[:_LISTED]]
        raise Refused(
            f"{len(below)} adapters in its subfolders",
            path=directory,
            found=", ".join(names) + ", ..." * (len(below) > _LISTED),
            hint="Name one of them",
        )
    return below[0]


def _nothing(directory: str, hint: str | None) -> NotFound:
    names = " and no ".join(reader.LOOKS_FOR for reader in READERS)
    return NotFound(f"the directory holds no {names}", path=directory, hint=hint)


def _directories(root: str) -> Iterator[str]:
    """The directories below, not too deep and not too many; hidden ones and links are left out."""
    level = [root]
    seen = 0
    for _ in range(_DEEPEST):
        inside: list[str] = []
        for parent in level:
            inside += _subdirectories(parent)
            if len(inside) + seen >= _MOST_DIRECTORIES:
                break
        yield from inside
        seen += len(inside)
        level = inside if seen < _MOST_DIRECTORIES else []


def _subdirectories(parent: str) -> list[str]:
    return [entry.path for entry in _entries(parent) if not entry.name.startswith(".") and _is_directory(entry)]


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:  # unreadable, or gone: what cannot be seen is not taken
        return []


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
