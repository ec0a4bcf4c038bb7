"""What the index says of adapters, held against an index that is made for this from nothing but their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, MalformedFile, RegistryError, StorageError
from registry.core.records import Record
from registry.core.summary import AdapterSummary
from registry.operations.seal import read_seal
from registry.store import Store, pass_over

if TYPE_CHECKING:
    from registry.index import Index

_LOOKS = 3  # others write meanwhile: only what differs every time may differ
_HINT = "Run `aorlta-reg reindex`"
_ALIASES = "aliases"
_Differences: TypeAlias = dict[Digest | str, RegistryError]


def differing(
    store: Store, index: Index, only: Sequence[Digest] | None
) -> Iterator[tuple[Digest | None, RegistryError]]:
    """The adapters of which the index does not say what the records say, and why.

    Args:
        store: the truth, which is only read. Records that cannot be read are left out, as in every index.
        index: what is held against it, which is only read.
        only: adapters that are stored or recorded. None for all, listed anew at every look, since others add meanwhile;
            then also what else the index knows, and where its aliases stand, are looked at.

    Raises:
        StorageError: the index cannot be read, or there is no room for the other one.
    """
    found = _look(store, index, only)
    for _ in range(_LOOKS - 1):
        if found:
            found = _still(found, _look(store, index, only))
    if found:
        with ExitStack() as held:
            try:
                held.enter_context(index.moving())
            except StorageError:  # it is read-only here, or is made anew for long: the looks must do
                pass
            else:  # nobody else writes
                found = _still(found, _look(store, index, only))
    for key, error in found.items():
        yield key if isinstance(key, Digest) else None, error


def _still(before: _Differences, now: _Differences) -> _Differences:
    return {key: now[key] for key in before if key in now}


def _look(store: Store, index: Index, only: Sequence[Digest] | None) -> _Differences:
    from registry.index import Database, Index  # noqa: PLC0415  SQLAlchemy is for those that have an index

    found: _Differences = {}
    whole = only is None
    subjects = sorted({*store.digests(), *store.subjects()}) if only is None else only
    expected = Index(Database(""))

    def refused(record: Record, error: MalformedFile) -> None:
        found[record.subject] = error

    expected.rebuild((each for subject in subjects for each in _known_of(store, subject)), refused)
    known = {*subjects, *index.digests()} if whole else subjects
    writing = {record.subject for record in store.unsettled(pass_over)}
    for digest in sorted(known):
        if digest not in writing and digest not in found:
            problem = _problem(index.adapter(digest), expected.adapter(digest), whole=whole)
            if problem is not None:
                found[digest] = IntegrityError(problem, key=str(digest), hint=_HINT)
    if whole and not writing and index.aliases() != expected.aliases():
        found[_ALIASES] = IntegrityError("the index has other aliases than the records", hint=_HINT)
    return found


def _problem(actual: AdapterSummary | None, expected: AdapterSummary | None, *, whole: bool) -> str | None:
    if expected is None and actual is not None:
        return "is in the index, and nothing is recorded of it"
    if actual is None and expected is not None:
        return "is not in the index"
    if actual is None or expected is None:
        return None
    if not whole:  # these hang on other adapters
        actual, expected = (replace(each, same_tensors=(), aliases=()) for each in (actual, expected))
    names = [name for name in AdapterSummary.__dataclass_fields__ if getattr(actual, name) != getattr(expected, name)]
    return f"the index says otherwise than the records: {', '.join(names)}" if names else None


def _known_of(store: Store, subject: Digest) -> list[Record]:
    """The records about an adapter, its exports first; where none is recorded, what hangs on one is left out."""
    found = store.records(subject, refused=pass_over)
    exports = [record for record in found if record.kind == records.EXPORT]
    if not exports and store.contains(subject):
        with suppress(RegistryError):  # told of the adapter itself
            exports = list(read_seal(store, subject).missing)
    others = [record for record in found if record.kind != records.EXPORT]
    return [*exports, *(each for each in others if exports or each.kind == records.ALIAS)]
