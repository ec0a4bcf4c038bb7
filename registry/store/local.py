"""The store in a local directory. The only module that knows its layout:

adapters/ab/ab12.../      adapter_model.safetensors  adapter_config.json  export-manifest.json   (read-only files)
records/ab/ab12.../       <kind>-<sha256>.json
pending/                  <kind>-<sha256>.json: records that were announced and are not settled yet
staging/                  on the same file system; nothing in it is visible to a reader
quarantine/               corrupt adapters that were replaced, kept as evidence
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import BinaryIO

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, NotFound, RegistryError, StorageError
from registry.core.records import Record
from registry.disk import (
    NewFiles,
    list_names,
    make_directories,
    open_regular,
    read_small,
    sync_directory,
    translated,
    write_file,
)
from registry.store.base import Refused
from registry.store.staging import staging_directory

_READ_ONLY = 0o444
MAX_RECORD = 16 << 20


class LocalStore:
    """A `Store` under `home`, which is created when something is first written."""

    def __init__(self, home: str) -> None:
        self._adapters = os.path.join(home, "adapters")
        self._records = os.path.join(home, "records")
        self._pending = os.path.join(home, "pending")
        self._staging = os.path.join(home, "staging")
        self._quarantine = os.path.join(home, "quarantine")

    @contextmanager
    def stage(self) -> Iterator[LocalStage]:
        with staging_directory(self._staging) as path:
            stage = LocalStage(self, path)
            try:
                yield stage
            finally:
                stage.files.close()

    def contains(self, digest: Digest) -> bool:
        return os.path.isdir(self.directory(digest))

    def find(self, prefix: str, limit: int) -> list[Digest]:
        return list(islice(_digests_in(os.path.join(self._adapters, prefix[:2]), prefix), limit))

    def digests(self) -> Iterator[Digest]:
        return _digests_below(self._adapters)

    def subjects(self) -> Iterator[Digest]:
        return _digests_below(self._records)

    def open(self, digest: Digest, name: str) -> BinaryIO:
        if not self.contains(digest):
            raise NotFound("no such adapter in the store", key=str(digest))
        return open_regular(os.path.join(self.directory(digest), name))

    def remove(self, digest: Digest) -> bool:
        final = self.directory(digest)
        if not self.contains(digest):
            return False
        with staging_directory(self._staging) as stage:  # which is deleted at the end, by the next sweep if not by us
            with translated(final):
                try:
                    os.rename(final, os.path.join(stage, digest.hex))
                except FileNotFoundError:  # another process was first
                    return False
            sync_directory(os.path.dirname(final))
        return True

    def put_record(self, record: Record) -> None:
        if len(record.data) > MAX_RECORD:
            raise StorageError("the record is too large to be read back", key=record.name, found=len(record.data))
        final = os.path.join(self._record_directory(record.subject), record.name)
        if not os.path.exists(final):
            self.announce(record)
            self._write(record.data, final)

    def records(self, subject: Digest, kind: str | None = None, refused: Refused | None = None) -> list[Record]:
        return _read_records(self._record_directory(subject), subject, kind, refused)

    def announce(self, record: Record) -> None:
        path = self._pending_path(record)
        if not os.path.exists(path):
            self._write(record.data, path)

    def unsettled(self, refused: Refused | None = None) -> list[Record]:
        return _read_records(self._pending, None, None, refused)

    def settle(self, record: Record) -> None:
        path = self._pending_path(record)
        with translated(path), suppress(FileNotFoundError):
            os.unlink(path)

    def directory(self, digest: Digest) -> str:
        """Where an adapter lies. Local only: other stores have no paths."""
        return os.path.join(self._adapters, digest.hex[:2], digest.hex)

    def set_aside(self, digest: Digest) -> str:
        """Move an adapter out of every reader's sight, keep it as evidence, and return where."""
        make_directories(self._quarantine)
        kept = os.path.join(self._quarantine, f"{digest.hex}-{secrets.token_hex(4)}")
        with translated(kept):
            os.rename(self.directory(digest), kept)
        sync_directory(self._quarantine)
        return kept

    def _record_directory(self, subject: Digest) -> str:
        return os.path.join(self._records, subject.hex[:2], subject.hex)

    def _pending_path(self, record: Record) -> str:
        return os.path.join(self._pending, record.name)

    def _write(self, data: bytes, path: str) -> None:
        """A read-only file that appears whole."""
        directory = os.path.dirname(path)
        make_directories(directory)
        with staging_directory(self._staging) as stage, translated(path):
            staged = os.path.join(stage, "record.json")
            write_file(staged, [data], _READ_ONLY)
            os.rename(staged, path)
        sync_directory(directory)


class LocalStage:
    """A `Stage`: one directory in staging."""

    def __init__(self, store: LocalStore, path: str) -> None:
        self._store = store
        self.files = NewFiles(path, _READ_ONLY)

    def publish(self, digest: Digest) -> bool:
        final = self._store.directory(digest)
        shard = os.path.dirname(final)
        make_directories(shard)
        self.files.sync()
        with translated(final):
            try:
                os.rename(self.files.directory, final)
            except OSError:
                if os.path.isdir(final):  # another process was first
                    return False
                raise
        sync_directory(shard)
        return True

    def replace(self, digest: Digest) -> None:
        with suppress(NotFound):  # another process has moved it already
            self._store.set_aside(digest)
        self.publish(digest)


def _read_records(directory: str, subject: Digest | None, kind: str | None, refused: Refused | None) -> list[Record]:
    """The records in a directory. One that has just been removed is passed over."""
    found = []
    for path in (os.path.join(directory, name) for name in list_names(directory) if records.is_name(name, kind)):
        try:
            found.append(records.parse(read_small(path, MAX_RECORD), path, subject))
        except NotFound:
            continue
        except RegistryError as error:
            if refused is None:
                raise
            refused(error)
    return found


def _digests_below(directory: str) -> Iterator[Digest]:
    for shard in list_names(directory):
        yield from _digests_in(os.path.join(directory, shard))


def _digests_in(shard: str, prefix: str = "") -> Iterator[Digest]:
    for name in list_names(shard, prefix):
        with suppress(InvalidReference):
            yield Digest(name)
