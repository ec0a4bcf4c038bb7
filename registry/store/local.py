"""The store in a local directory. The only module that knows its layout:

adapters/ab/ab12.../      adapter_model.safetensors  adapter_config.json  export-manifest.json   (read-only files)
records/ab/ab12.../       <kind>-<sha256>.json
staging/                  on the same file system; nothing in it is visible to a reader
quarantine/               corrupt adapters that were replaced, kept as evidence
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, NotFound, StorageError
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
from registry.store.staging import staging_directory

_READ_ONLY = 0o444
MAX_RECORD = 16 << 20


class LocalStore:
    """A `Store` under `home`, which is created when something is first written."""

    def __init__(self, home: str) -> None:
        self._adapters = os.path.join(home, "adapters")
        self._records = os.path.join(home, "records")
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
        shard = os.path.join(self._adapters, prefix[:2])
        return [digest for digest in _digests_in(shard) if digest.hex.startswith(prefix)][:limit]

    def digests(self) -> Iterator[Digest]:
        for shard in list_names(self._adapters):
            yield from _digests_in(os.path.join(self._adapters, shard))

    def open(self, digest: Digest, name: str) -> BinaryIO:
        if not self.contains(digest):
            raise NotFound("no such adapter in the store", key=str(digest))
        return open_regular(os.path.join(self.directory(digest), name))

    def put_record(self, record: Record) -> None:
        if len(record.data) > MAX_RECORD:
            raise StorageError("the record is too large to be read back", key=record.name, found=len(record.data))
        directory = self._record_directory(record.subject)
        final = os.path.join(directory, record.name)
        if os.path.exists(final):
            return
        make_directories(directory)
        with staging_directory(self._staging) as stage, translated(final):
            staged = os.path.join(stage, record.name)
            write_file(staged, [record.data], _READ_ONLY)
            os.rename(staged, final)
        sync_directory(directory)

    def records(self, subject: Digest, kind: str) -> list[Record]:
        directory = self._record_directory(subject)
        paths = [os.path.join(directory, name) for name in list_names(directory) if records.is_name(name, kind)]
        return [records.parse(read_small(path, MAX_RECORD), path, subject) for path in paths]

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


def _digests_in(shard: str) -> Iterator[Digest]:
    for name in list_names(shard):
        with suppress(InvalidReference):
            yield Digest(name)
