"""Lineage: from what a person typed to an adapter, a checkpoint or a run, and its lineage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from registry.core import refs
from registry.core.digest import Digest
from registry.core.errors import Ambiguous, InvalidReference, NotFound, RegistryError
from registry.core.lineage import Kind, Lineage, Start
from registry.core.refs import AliasName, Prefix, RunIteration
from registry.operations.seal import read_seal
from registry.operations.settle import settle
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index

_SHOWN = 10
_ADD = "Not added yet? Run `aorlta-reg add` on it"


def lineage(
    store: Store, index: Index | None, target: str, *, up: bool, down: bool, depth: int | None, limit: int
) -> Lineage:
    """The lineage of what `target` names.

    Args:
        store: where adapters lie; one that the index has not heard of is added to it.
        index: answers; None where there is no registry.
        target: a reference, a run's name, a checkpoint's digest, the path of a checkpoint or of an adapter's weights;
            or with `adapter:`, `run:` or `checkpoint:` in front, that and nothing else.
        up: towards what it came from.
        down: towards what came of it.
        depth: how many steps from run to run; None for all.
        limit: how many exports of one run are listed.

    Raises:
        InvalidReference: it cannot be a reference, and names nothing else.
        NotFound: nothing known has this name.
        Ambiguous: several things have.
        MalformedFile, StorageError: a path that cannot be read.
    """
    if index is None:
        raise NotFound("nothing has been added yet", key=target)
    start = _start(store, index, target)
    if start.kind is Kind.ADAPTER and not index.known(Kind.ADAPTER, start.name, 1):
        settle(store, index, read_seal(store, Digest(start.name)).exports)
    found = index.lineage(start, up=up, down=down, depth=depth, limit=limit)
    if found is None:
        raise NotFound(f"no such {start.kind} in the index", key=start.name, hint="Run `aorlta-reg reindex`")
    return found


def _start(store: Store, index: Index, target: str) -> Start:
    word = target.strip()
    kind, _, rest = word.partition(":")
    match kind if rest else None:
        case Kind.RUN:
            return _one(rest, _runs(index, rest))
        case Kind.ADAPTER:
            return _one(rest, _adapters(store, index, rest))
        case Kind.CHECKPOINT:
            return _one(rest, _checkpoints(index, rest) or _by_path(index, rest, (Kind.CHECKPOINT,)))
    failure: RegistryError = NotFound("no adapter, checkpoint, run or file has this name", key=word)
    found: list[Start] = []
    try:
        found = _adapters(store, index, word)
    except InvalidReference as error:
        failure = error
    except NotFound:
        pass  # it can be no alias, but it may be a run's name or a path
    found += [*_checkpoints(index, word), *_runs(index, word)]
    if not found and os.path.lexists(target):
        found = _by_path(index, target, (Kind.CHECKPOINT, Kind.ADAPTER))
    if not found:
        raise failure
    return _one(word, found)


def _one(word: str, found: list[Start]) -> Start:
    """What was found, if it is one thing.

    Raises:
        NotFound: it is none.
        Ambiguous: it is several.
    """
    if not found:
        raise NotFound("nothing known has this name", key=word, hint=_ADD)
    if len(found) > 1:
        raise Ambiguous(
            "more than one thing has this name",
            candidates=[f"{each.kind}:{each.name}" for each in found[:_SHOWN]] + ["..."] * (len(found) > _SHOWN),
            key=word,
            hint="Give one of these",
        )
    return found[0]


def _adapters(store: Store, index: Index, reference: str) -> list[Start]:
    """The adapters that a reference names, removed ones too.

    Raises:
        InvalidReference, NotFound: it can be no reference, or an alias that there is not.
    """
    found: set[Digest]
    match refs.parse(reference):
        case Digest() as digest:
            found = set(index.known(Kind.ADAPTER, digest.hex, 1)) | ({digest} if store.contains(digest) else set())
        case Prefix(digits):
            found = {*index.known(Kind.ADAPTER, digits, _SHOWN + 1), *store.find(digits, _SHOWN + 1)}
        case RunIteration() as run:
            found = set(index.exported(run, _SHOWN + 1))
        case AliasName(name):
            last = index.last_move(AliasName(name))
            found = {last.after} if last is not None and last.after is not None and last.name == name else set()
            found = {each for each in found if store.contains(each) or index.known(Kind.ADAPTER, each.hex, 1)}
    return [Start(Kind.ADAPTER, digest.hex) for digest in sorted(found)]


def _runs(index: Index, name: str) -> list[Start]:
    return [Start(Kind.RUN, name)] if refs.is_name(name) and index.knows_run(name) else []


def _checkpoints(index: Index, word: str) -> list[Start]:
    """The checkpoints whose digest this is, or starts with this."""
    try:
        parsed = refs.parse(word)
    except (InvalidReference, NotFound):
        return []
    if not isinstance(parsed, Digest | Prefix):
        return []
    return [Start(Kind.CHECKPOINT, digest.hex) for digest in index.known(Kind.CHECKPOINT, parsed.hex, _SHOWN + 1)]


def _by_path(index: Index, path: str, kinds: tuple[Kind, ...]) -> list[Start]:
    """What a file holds, by the digest of its bytes.

    Raises:
        NotFound: there is no such file, or nothing of this digest is known.
    """
    from registry.checkpoints import identify  # noqa: PLC0415  only a path needs to be understood

    file, digest = identify(path)
    for kind in kinds:
        if index.known(kind, digest.hex, 1):
            return [Start(kind, digest.hex)]
    raise NotFound("nothing is known of this file", path=file, found=digest, hint=_ADD)
