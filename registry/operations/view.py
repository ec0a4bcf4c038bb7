"""View: a directory of adapters for one engine to look into, each in a real directory named by its digest.

A name never comes to mean other weights, because engines keep what they once loaded under a name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

from registry.core.digest import Digest
from registry.core.errors import Conflict, NotFound, OutputExists, Refused, RegistryError
from registry.core.layout import ADAPTER_FILES, WEIGHTS
from registry.disk import NewFiles, Replacement, hash_file, open_regular, remove_directory, translated
from registry.operations import seal
from registry.operations.get import copy
from registry.operations.serving import Wanted, adapted, stated_base
from registry.store import Store

MARK = ".aorlta-reg-view"
"""The file by which a directory is known to be a view, and that is locked while it is brought up to date."""
_NAME = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = re.compile(r"\.partial-[0-9a-f]{16}|[0-9a-f]{64}\.partial-[0-9a-f]{8}(-old)?")
_SHOWN = 5


class Change(StrEnum):
    """What became of an adapter in a view."""

    ADDED = "added"
    KEPT = "kept"
    REPAIRED = "repaired"


@dataclass(frozen=True, slots=True)
class Viewed:
    """What a view holds.

    Attributes:
        directory: its absolute path.
        adapters: what became of each adapter in it, in the order asked for.
        removed: the adapters that were in it and are no longer.
        left_out: the adapters that were asked for and are not in it, and why.
        bases: what their configs call the base, and how many do.
    """

    directory: str
    adapters: dict[Digest, Change]
    removed: tuple[Digest, ...]
    left_out: dict[Digest, RegistryError]
    bases: dict[str | None, int]


def view(
    store: Store,
    directory: str,
    digests: Iterable[Digest],
    wish: Wanted,
    progress: Callable[[int, int], None] | None = None,
) -> Viewed:
    """Let a directory hold these adapters and no others. Copies that are there already are hashed, and stay if right.

    Each appears, changes and goes in one step. A run that was killed leaves a view with fewer or more adapters, each of
    them whole, and the next one finishes it.

    Args:
        store: where the adapters lie.
        directory: a view, an empty directory, or a name for a new one.
        digests: the adapters that are wanted.
        wish: for which engine, and under which name of the base.
        progress: called with the adapters done since the last call, in bytes of their weights, and all of those.

    Raises:
        OutputExists: the directory holds something else, or one of its adapters' directories does.
        Refused: one name was given for several bases.
        Conflict: another process is bringing it up to date.
        StorageError.
    """
    path = os.path.abspath(directory)
    chosen = list(dict.fromkeys(digests))
    changes: dict[Digest, Change] = {}
    left_out: dict[Digest, RegistryError] = {}
    bases: dict[Digest, str | None] = {}
    sizes: dict[Digest, int] = {}
    for digest in chosen:
        with _noted(left_out, digest):
            bases[digest], sizes[digest] = _base_and_size(store, digest)
    if wish.base_name is not None:
        _require_one_base(set(bases.values()), wish.base_name)
    with _locked(path):
        _finish_earlier(path)
        for digest in bases:
            with _noted(left_out, digest):
                changes[digest] = _put(store, path, digest, wish)
            if progress is not None:
                progress(sizes[digest], sum(sizes.values()))
        removed = tuple(_remove_others(path, changes))
    counts = Counter(wish.base_name or bases[digest] for digest in changes)
    return Viewed(path, changes, removed, left_out, dict(counts))


@contextmanager
def _noted(left_out: dict[Digest, RegistryError], digest: Digest) -> Iterator[None]:
    """One adapter that cannot be shown does not stop the others; what stands in a view's way does."""
    try:
        yield
    except OutputExists:
        raise
    except RegistryError as error:
        left_out[digest] = error


def _base_and_size(store: Store, digest: Digest) -> tuple[str | None, int]:
    found = stated_base(store, digest, seal.read_seal(store, digest).files)
    with seal.opened(store, digest, WEIGHTS) as file:
        return found if isinstance(found, str) else None, os.fstat(file.fileno()).st_size


def _require_one_base(stated: set[str | None], name: str) -> None:
    """One name for several bases would serve an adapter on a base that it was not trained on."""
    if len(stated) > 1:
        listed = sorted(str(base) for base in stated)
        raise Refused(
            f"{len(listed)} bases cannot have one name",
            key=name,
            found=", ".join(listed[:_SHOWN]) + ", ..." * (len(listed) > _SHOWN),
            hint="Choose adapters of one base, or one view for each",
        )


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Make it a view if it is none, and keep others from changing it meanwhile."""
    with translated(path), suppress(FileExistsError):
        os.mkdir(path)
    mark = os.path.join(path, MARK)
    with translated(path):
        if not os.path.isdir(path):
            raise OutputExists("is no directory", path=path)
        if not os.path.lexists(mark) and os.listdir(path):
            raise OutputExists("is no view, and holds other files", path=path, hint="Name a new or an empty directory")
        descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with translated(mark):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict("another process is bringing this view up to date", path=path) from error
        yield
    finally:
        os.close(descriptor)


def _finish_earlier(path: str) -> None:
    """Remove what a process that was killed was copying or removing."""
    with translated(path):
        names = [name for name in os.listdir(path) if _UNFINISHED.fullmatch(name)]
    for name in names:
        remove_directory(os.path.join(path, name), ADAPTER_FILES)


def _put(store: Store, path: str, digest: Digest, wish: Wanted) -> Change:
    expected = seal.read_seal(store, digest).files
    texts = adapted(store, digest, expected, wish)
    final = os.path.join(path, digest.hex)
    if not os.path.lexists(final):
        beside = os.path.join(path, f".partial-{secrets.token_hex(8)}")
        with translated(beside):
            os.mkdir(beside)
        try:
            with closing(NewFiles(beside, 0o666)) as files:
                copy(store, digest, expected, texts, files)
            with translated(final):
                os.rename(beside, final)
        except BaseException:
            remove_directory(beside, ADAPTER_FILES)
            raise
        return Change.ADDED
    if _is_right(final, expected, texts):
        return Change.KEPT
    with Replacement(final, ADAPTER_FILES) as replacement:
        copy(store, digest, expected, texts, replacement.files)
        replacement.publish()
    return Change.REPAIRED


def _is_right(directory: str, expected: Mapping[str, Digest], texts: Mapping[str, bytes]) -> bool:
    for name in ADAPTER_FILES:
        wanted = Digest(hashlib.sha256(texts[name]).hexdigest()) if name in texts else expected[name]
        try:
            with open_regular(os.path.join(directory, name)) as file:
                actual = hash_file(file)
        except (NotFound, Refused):
            return False
        if actual != wanted:
            return False
    return True


def _remove_others(path: str, wanted: Mapping[Digest, Change]) -> Iterator[Digest]:
    """Out of sight in one step, and then away."""
    names = {digest.hex for digest in wanted}
    with translated(path):
        others = sorted(name for name in os.listdir(path) if _NAME.fullmatch(name) and name not in names)
    for name in others:
        beside = os.path.join(path, f".partial-{secrets.token_hex(8)}")
        with translated(path):
            os.rename(os.path.join(path, name), beside)
        try:
            remove_directory(beside, ADAPTER_FILES)
        except OutputExists as error:
            with translated(path):
                os.rename(beside, os.path.join(path, name))
            raise OutputExists(
                "holds other files", path=os.path.join(path, name), found=error.found, hint=error.hint
            ) from error
        yield Digest(name)
