"""What every store promises. Policy (what an adapter is, when to verify it) stands above, in the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from registry.core.digest import Bytes, Digest
from registry.core.errors import RegistryError
from registry.core.records import Record

Refused = Callable[[RegistryError], None]


def pass_over(_error: RegistryError) -> None:
    """What takes no notice of a record that cannot be read: `verify` and `reindex` name it."""


"""Is told why something was left out."""


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

    def names(self, digest: Digest) -> list[str]:
        """The names of all that lies where the files of an adapter do, sorted; none where no such adapter is stored."""
        ...

    def quarantined(self) -> int:
        """How many corrupt adapters were moved aside and are kept as evidence."""
        ...

    def strays(self) -> Iterator[str]:
        """The names of all that lies among adapters and records and is nothing that a store puts there."""
        ...

    def remove(self, digest: Digest) -> bool:
        """Delete an adapter: gone for readers at once and durably, whole; who has one of its files open reads on.

        Its records stay. Returns False where no such adapter is stored.
        """
        ...

    def put_record(self, record: Record) -> None:
        """Keep a record, durably. A new one is announced first."""
        ...

    def records(self, subject: Digest, kind: str | None = None, refused: Refused | None = None) -> list[Record]:
        """The records about an adapter, sorted by name.

        Args:
            subject: the adapter, which need not be stored.
            kind: only of this kind. Others are not looked at, so they cannot stand in the way.
            refused: told of each record that cannot be read, which is then left out.

        Raises:
            IntegrityError: a record does not match its name, and nobody is told of it. So for other damage.
        """
        ...

    def subjects(self) -> Iterator[Digest]:
        """All adapters with records, sorted, stored or not."""
        ...

    def announce(self, record: Record) -> None:
        """Keep a record aside, durably, until `settle`: who writes it may be killed before all is done that it says.

        It is not among `records` until it is put there. Announcing what is announced changes nothing.
        """
        ...

    def unsettled(self, refused: Refused | None = None) -> list[Record]:
        """All records that were announced and not settled. `refused` and errors as for `records`."""
        ...

    def settle(self, record: Record) -> None:
        """Forget that a record was announced: all is done, or never will be. Harmless where it was not."""
        ...
