"""From what a person typed to the one adapter it means. Digests and prefixes are found in the store itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from registry.core import refs
from registry.core.digest import Digest
from registry.core.errors import Ambiguous, NotFound
from registry.core.refs import AliasName, Prefix, RunIteration
from registry.operations.gone import not_found
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index

_SHOWN = 10


def resolve(store: Store, reference: str, index: Callable[[], Index | None]) -> Digest:
    """The digest of the stored adapter that a reference names.

    Args:
        store: where the adapter lies.
        reference: as a person typed it.
        index: gives the index, for aliases and RUN@ITER only; None where there is no registry.

    Raises:
        InvalidReference: it cannot be a reference.
        NotFound: nothing stored matches.
        Ambiguous: several adapters start with this prefix, or were exported by this run at this iteration.
    """
    match refs.parse(reference):
        case Prefix() as prefix:
            return _by_prefix(store, prefix)
        case AliasName() as name:
            found = _by_alias(index(), name)
        case RunIteration() as run:
            found = _by_run(index(), run)
        case Digest() as digest:
            found = digest
    if not store.contains(found):
        raise not_found(store, found)
    return found


def _by_prefix(store: Store, prefix: Prefix) -> Digest:
    matches = store.find(prefix.hex, _SHOWN + 1)
    if not matches:
        raise NotFound("no adapter's digest starts with this", key=prefix.hex)
    if len(matches) > 1:
        raise Ambiguous(
            "more than one adapter starts with this",
            candidates=_shown(match.hex[: len(prefix.hex) + 8] for match in matches),
            key=prefix.hex,
            hint="Give more digits",
        )
    return matches[0]


def _by_alias(index: Index | None, name: AliasName) -> Digest:
    last = None if index is None else index.last_move(name)
    if last is None or last.after is None or last.name != name.name:
        near = last is not None and last.after is not None
        raise NotFound("no alias has this name", key=name.name, hint=f"There is {last.name}" if near and last else None)
    return last.after


def _by_run(index: Index | None, run: RunIteration) -> Digest:
    matches = [] if index is None else index.exported(run, _SHOWN + 1)
    if not matches:
        raise NotFound("no adapter is known of this run and iteration", key=str(run))
    if len(matches) > 1:
        raise Ambiguous(
            "more than one adapter was exported there",
            candidates=_shown(match.short for match in matches),
            key=str(run),
            hint="Give the digest of one of them",
        )
    return matches[0]


def _shown(matches: Iterable[str]) -> list[str]:
    listed = list(matches)
    return listed[:_SHOWN] + ["..."] * (len(listed) > _SHOWN)
