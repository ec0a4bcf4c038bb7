"""Every error that this package raises on purpose. Holds the facts of a failure and builds its message once from them;
knows nothing of exit codes or printing.

RegistryError
├── Refused                 input that is not accepted; nothing was published
│   ├── MalformedFile       a file that is not what it claims to be, or is damaged
│   │   └── UnsafePickle    a pickle that asks for something this reader never does
│   ├── ManifestMismatch    bytes that differ from what the checkpoint's manifest says
│   ├── ChangedWhileRead    a file that changed between planning and reading
│   ├── UnsupportedLora     LoRA tensors or settings that cannot be exported without loss
│   ├── MissingAlpha        no source gives alpha
│   └── OutputExists        the output directory exists, or appeared meanwhile
├── InvalidReference        text that cannot be a reference at all
├── NotFound                nothing is known under this name
├── Ambiguous               several adapters match; they are listed
├── IntegrityError          stored bytes do not match their digest
├── Conflict                a fact is already bound otherwise
│   └── ConfigConflict      an adapter is stored with a config that means another function
└── StorageError            the file system or database failed (full, read-only, unreadable, unreachable)
    ├── IndexVersion        the index was made by another version of this program
    ├── IndexDamaged        the index's file is not a sound database
    └── IndexMissing        the index is empty and the store is not
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from os import PathLike
from typing import Any

_SHOWN = 80


def shown(value: object) -> str:
    """A short repr for messages, of anything that a pickle can hold: nested without end, or of a million digits."""
    try:
        return reprlib.repr(value)[:_SHOWN]
    except ValueError:  # an int of more digits than Python prints
        return f"a huge {type(value).__name__}"


def shortened(text: str, limit: int) -> str:
    """`text`, or where it is longer than `limit` characters, its start and its end with what is between counted."""
    if len(text) <= limit:
        return text
    end = limit // 4
    start = limit - end
    return f"{text[:start]}... ({len(text) - start - end} characters) ...{text[-end:]}"


class RegistryError(Exception):
    """Base of all errors raised on purpose.

    Args:
        problem: what is wrong, as a clause that starts in lower case.
        path: the file concerned.
        key: the key, tensor or record inside that file.
        expected, found: the two sides of a failed comparison.
        hint: what the reader can do about it, a sentence.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | PathLike[str] | None = None,
        key: str | None = None,
        expected: Any = None,
        found: Any = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.path = None if path is None else str(path)
        self.key = key
        self.expected = expected
        self.found = found
        self.hint = hint
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [part for part in (self.path, self.key, self.problem) if part]
        message = ": ".join(parts)
        if self.found is not None:
            message += f"; found {self.found}"
        if self.expected is not None:
            message += f"; expected {self.expected}"
        if self.hint:
            message += f". {self.hint}"
        return message

    @property
    def kind(self) -> str:
        """The class name, which is part of the documented `--json` output."""
        return type(self).__name__


class Refused(RegistryError):
    """The input is not accepted. Nothing was published."""


class MalformedFile(Refused):
    """The file is truncated, damaged, or of another format."""


class UnsafePickle(MalformedFile):
    """The pickle uses an opcode or a size that a checkpoint never needs."""


class ManifestMismatch(Refused):
    """The file's bytes are not those that its manifest lists."""


class ChangedWhileRead(Refused):
    """The file changed while it was read."""


class UnsupportedLora(Refused):
    """The LoRA in this checkpoint cannot be exported without losing or inventing something."""


class MissingAlpha(Refused):
    """alpha stands neither in the checkpoint nor in the run's config, and was not given."""


class OutputExists(Refused):
    """The output path is taken."""


class InvalidReference(RegistryError):
    """The text is not a reference of any kind."""


class NotFound(RegistryError):
    """No adapter, checkpoint or run is known under this name."""


class Ambiguous(RegistryError):
    """More than one adapter matches; `candidates` lists some of them."""

    def __init__(self, problem: str, *, candidates: Sequence[str], **facts: Any) -> None:
        self.candidates = tuple(candidates)
        super().__init__(problem, found=", ".join(candidates), **facts)


class IntegrityError(RegistryError):
    """Stored bytes do not match the digest they are filed under."""


class Conflict(RegistryError):
    """The registry already holds another answer to the same question."""


class ConfigConflict(Conflict):
    """The adapter is stored already, with a config that makes another function of it."""


class StorageError(RegistryError):
    """The storage below failed: full, read-only, unreadable or unreachable."""


class IndexVersion(StorageError):
    """The index's schema is newer or older than this program can use."""


class IndexDamaged(StorageError):
    """The index's file is not a database, is a damaged one, or does not have the tables that it says it has."""


class IndexMissing(StorageError):
    """The index knows nothing of what the store holds, and that is too much to read at once."""
