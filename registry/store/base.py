"""What every store promises. Policy (what an adapter is, when to verify it) stands above, in the operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from registry.core.digest import Bytes, Digest
from registry.core.records import Record


class Files(Protocol):
    """Files being written where no reader sees them."""

    def write(self, name: str, chunks: Iterable[Bytes]) -> int:
        """Write one new file; returns its length in bytes."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Read back a file that was written."""
        ...

    def sync(self) -> None:
        """Make all that was written durable."""
        ...


class Stage(Protocol):
    """A private place where the files of one adapter are gathered until they become an adapter of the store."""

    @property
    def files(self) -> Files:
        """Where to write them."""
        ...

    def publish(self, digest: Digest) -> bool:
        """Make the staged files the adapter `digest`, all at once and durably.

        Returns False, and changes nothing, if the store has an adapter of this digest.
        """
        ...

    def replace(self, digest: Digest) -> None:
        """Like `publish`, but a present adapter is moved aside, kept as evidence, to make room."""
        ...


class Store(Protocol):
    """Adapters and records by digest.

    Guarantees: an adapter is visible whole or not at all, and survives a power cut once `publish` has returned; a
    record is immutable and writing it again is harmless. Errors: NotFound where nothing is stored under a digest,
    StorageError for all that the storage below fails at. Nothing is verified on the way out: callers do that.
    """

    def stage(self) -> AbstractContextManager[Stage]:
        """A fresh stage; what is not published is removed when the block ends."""
        ...

    def contains(self, digest: Digest) -> bool:
        """Whether an adapter of this digest is stored."""
        ...

    def find(self, prefix: str, limit: int) -> list[Digest]:
        """Up to `limit` stored adapters whose digest starts with these hex digits (at least two), sorted."""
        ...

    def digests(self) -> Iterator[Digest]:
        """All stored adapters, sorted."""
        ...

    def open(self, digest: Digest, name: str) -> BinaryIO:
        """One file of an adapter, open for reading."""
        ...

    def put_record(self, record: Record) -> None:
        """Keep a record, durably."""
        ...

    def records(self, subject: Digest, kind: str) -> list[Record]:
        """The records of one kind about an adapter, by name. Others are not looked at, so they cannot stand in the way.

        Raises:
            IntegrityError: a record does not match its name.
        """
        ...
