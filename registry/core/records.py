"""Records: immutable canonical-JSON facts about an adapter, in the shape of an in-toto Statement v1.

A record's identity is the sha256 of its bytes, which is also in its file name; so a record proves itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, InvalidReference, MalformedFile
from registry.core.layout import WEIGHTS

STATEMENT = "https://in-toto.io/Statement/v1"
EXPORT = "export"
COMPARISON = "comparison"
ALIAS = "alias"
SCORE = "score"
REMOVAL = "removal"
_TIMES = {
    EXPORT: "exported_at",
    COMPARISON: "compared_at",
    ALIAS: "moved_at",
    SCORE: "scored_at",
    REMOVAL: "removed_at",
}
_TYPE = "urn:aorlta-reg:{kind}:v1"


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One fact about the adapter `subject`. `data` are the canonical bytes, `digest` their sha256.

    `path` is where it was read, for messages.
    """

    kind: str
    subject: Digest
    predicate: dict[str, Any]
    data: bytes
    digest: Digest
    path: str | None = None

    @property
    def name(self) -> str:
        """The record's file name."""
        return f"{self.kind}-{self.digest.hex}.json"


def make(kind: str, subject: Digest, predicate: dict[str, Any]) -> Record:
    """Build the record that states `predicate` of the adapter `subject`."""
    data = jsontext.pretty(
        {
            "_type": STATEMENT,
            "subject": [{"name": WEIGHTS, "digest": {"sha256": subject.hex}}],
            "predicateType": _TYPE.format(kind=kind),
            "predicate": predicate,
        }
    )
    return Record(kind, subject, predicate, data, Digest(hashlib.sha256(data).hexdigest()))


def time_of(record: Record) -> object:
    """When that was which a record states, as it says itself; None where it does not."""
    return record.predicate.get(_TIMES.get(record.kind, ""))


def is_name(name: str, kind: str | None = None) -> bool:
    """Whether a file of this name is a record, of this kind."""
    return name.startswith("" if kind is None else f"{kind}-") and name.endswith(".json")


def parse(data: bytes, path: str, subject: Digest | None = None) -> Record:
    """Read a record that is filed under `subject`, or anywhere; the last part of `path` is its name.

    Raises:
        IntegrityError: when the bytes are not those that the name promises.
        MalformedFile: when they are, but do not form a record about `subject`.
    """
    kind, _, rest = path.rpartition("/")[2].removesuffix(".json").partition("-")
    actual = hashlib.sha256(data).hexdigest()
    if rest != actual:
        raise IntegrityError("the record does not match its name", path=path, expected=rest, found=actual)
    statement = jsontext.parse(data, path)
    match statement:
        case {
            "_type": str(form),
            "subject": [{"digest": {"sha256": str(about)}}],
            "predicateType": str(predicate_type),
            "predicate": dict(predicate),
        } if form == STATEMENT and _is(about, subject) and predicate_type == _TYPE.format(kind=kind):
            return Record(kind, Digest(about), predicate, data, Digest(actual), path)
    raise MalformedFile(f"not an in-toto statement of kind {kind!r} about {subject or 'an adapter'}", path=path)


def _is(about: str, subject: Digest | None) -> bool:
    if subject is not None:
        return about == subject.hex
    try:
        return Digest(about) is not None
    except InvalidReference:
        return False
