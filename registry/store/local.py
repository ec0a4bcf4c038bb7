"""The store in a local directory. The only module that knows its layout:

adapters/ab/ab12.../      adapter_model.safetensors  adapter_config.json  export-manifest.json   (read-only files)
records/ab/ab12.../       <kind>-<sha256>.json
pending/                  <kind>-<sha256>.json: records that were announced and are not settled yet
staging/                  on the same file system; nothing in it is visible to a reader
quarantine/               corrupt adapters that were replaced, kept as evidence

Nothing here is a link, and whoever can write to the store could put one: none is followed, to read, write or delete.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import BinaryIO

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, InvalidReference, NotFound, RegistryError, StorageError
from registry.core.records import Record
from registry.disk import (
    NewFiles,
    directory_inside,
    kind_inside,
    make_inside,
    names_inside,
    open_inside,
    require_directory,
    sync_directory,
    translated,
    whole,
    write_file,
)
from registry.store.base import Refused
from registry.store.staging import is_staging_name, staging_directory

_ADAPTERS, _RECORDS, _PENDING = "adapters", "records", "pending"
_STAGING, _QUARANTINE = "staging", "quarantine"
_READ_ONLY = 0o444
MAX_RECORD = 16 << 20
_SHARD = re.compile(r"[0-9a-f]{2}")


class LocalStore:
    """A `Store` under `home`, which is created when something is first written."""

    def __init__(self, home: str) -> None:
        self._home = home

    @contextmanager
    def stage(self) -> Iterator[LocalStage]:
        with staging_directory(self._home, _STAGING) as path:
            stage = LocalStage(self, path)
            try:
                yield stage
            finally:
                stage.files.close()

    def contains(self, digest: Digest) -> bool:
        """Also where a link is in its place: opening its files then says so."""
        return kind_inside(self._home, *_adapter(digest)) in (stat.S_IFDIR, stat.S_IFLNK)

    def find(self, prefix: str, limit: int) -> list[Digest]:
        return list(islice(self._digests_in(_ADAPTERS, prefix[:2], prefix), limit))

    def digests(self) -> Iterator[Digest]:
        return self._digests_below(_ADAPTERS)

    def subjects(self) -> Iterator[Digest]:
        return self._digests_below(_RECORDS)

    def open(self, digest: Digest, name: str) -> BinaryIO:
        if not self.contains(digest):
            raise NotFound("no such adapter in the store", key=str(digest))
        with directory_inside(self._home, *_adapter(digest)) as directory:
            return open_inside(directory, name, os.path.join(self.directory(digest), name))

    def names(self, digest: Digest) -> list[str]:
        return names_inside(self._home, *_adapter(digest))

    def quarantined(self) -> int:
        return len(names_inside(self._home, _QUARANTINE))

    def strays(self) -> Iterator[str]:
        for place in (_ADAPTERS, _RECORDS):
            for shard in self._names(place):
                if not _is_shard(shard):
                    yield os.path.join(self._home, place, shard)
                    continue
                for name in self._names(place, shard):
                    if not self._is_filed(place, shard, name):
                        yield os.path.join(self._home, place, shard, name)
                    elif place == _RECORDS:
                        yield from self._unlike(records.is_name, place, shard, name)
        yield from self._unlike(records.is_name, _PENDING)
        yield from self._unlike(is_staging_name, _STAGING)

    def remove(self, digest: Digest) -> bool:
        final = self.directory(digest)
        if not self.contains(digest):
            return False
        with staging_directory(self._home, _STAGING) as stage:  # deleted at the end, by the next sweep if not by us
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
        if kind_inside(self._home, *_recorded(record.subject), record.name) != stat.S_IFREG:
            self.announce(record)
            self._write(record, *_recorded(record.subject))

    def records(self, subject: Digest, kind: str | None = None, refused: Refused | None = None) -> list[Record]:
        return self._read_records(_recorded(subject), subject, kind, refused)

    def announce(self, record: Record) -> None:
        if kind_inside(self._home, _PENDING, record.name) != stat.S_IFREG:
            self._write(record, _PENDING)

    def unsettled(self, refused: Refused | None = None) -> list[Record]:
        return self._read_records((_PENDING,), None, None, refused)

    def settle(self, record: Record) -> None:
        pending = os.path.join(self._home, _PENDING)
        with suppress(NotFound):
            require_directory(pending)
            path = os.path.join(pending, record.name)
            with translated(path):
                os.unlink(path)

    def directory(self, digest: Digest) -> str:
        """Where an adapter lies. Local only: other stores have no paths."""
        return os.path.join(self._home, *_adapter(digest))

    def make_shard(self, digest: Digest) -> str:
        """Make the directory in which an adapter lies, and return its path."""
        return make_inside(self._home, *_adapter(digest)[:-1])

    def set_aside(self, digest: Digest) -> str:
        """Move an adapter out of every reader's sight, keep it as evidence, and return where."""
        quarantine = make_inside(self._home, _QUARANTINE)
        self.make_shard(digest)
        kept = os.path.join(quarantine, f"{digest.hex}-{secrets.token_hex(4)}")
        with translated(kept):
            os.rename(self.directory(digest), kept)
        sync_directory(quarantine)
        return kept

    def _write(self, record: Record, *directory: str) -> None:
        """A read-only file that appears whole."""
        final = os.path.join(make_inside(self._home, *directory), record.name)
        with staging_directory(self._home, _STAGING) as stage, translated(final):
            staged = os.path.join(stage, "record.json")
            write_file(staged, [record.data], _READ_ONLY)
            os.rename(staged, final)
        sync_directory(os.path.dirname(final))

    def _read_records(
        self, of: tuple[str, ...], subject: Digest | None, kind: str | None, refused: Refused | None
    ) -> list[Record]:
        """The records in a directory. One that has just been removed is passed over."""
        found: list[Record] = []
        try:
            with directory_inside(self._home, *of) as directory:
                with translated(os.path.join(self._home, *of)):
                    names = sorted(name for name in os.listdir(directory) if records.is_name(name, kind))
                for name in names:
                    path = os.path.join(self._home, *of, name)
                    try:
                        with open_inside(directory, name, path) as file:
                            found.append(records.parse(whole(file, MAX_RECORD), path, subject))
                    except NotFound:
                        continue
                    except RegistryError as error:
                        if refused is None:
                            raise
                        refused(error)
        except NotFound:
            return []
        except IntegrityError as error:
            if refused is None:
                raise
            refused(error)
        except StorageError:
            if kind_inside(self._home, *of) != stat.S_IFREG:  # a stray file says nothing about any adapter
                raise
        return found

    def _names(self, *parts: str) -> list[str]:
        return names_inside(self._home, *parts)

    def _unlike(self, known: Callable[[str], bool], *parts: str) -> Iterator[str]:
        return (os.path.join(self._home, *parts, name) for name in self._names(*parts) if not known(name))

    def _is_filed(self, place: str, shard: str, name: str) -> bool:
        """Whether this is a directory where one of this name belongs, or a link, which opening it refuses."""
        with suppress(InvalidReference):
            belongs = Digest(name).hex[:2] == shard
            return belongs and kind_inside(self._home, place, shard, name) in (stat.S_IFDIR, stat.S_IFLNK, None)
        return False

    def _digests_below(self, place: str) -> Iterator[Digest]:
        for shard in filter(_is_shard, self._names(place)):
            yield from self._digests_in(place, shard, shard)

    def _digests_in(self, place: str, shard: str, prefix: str = "") -> Iterator[Digest]:
        for name in names_inside(self._home, place, shard, prefix=prefix):
            with suppress(InvalidReference):
                yield Digest(name)


class LocalStage:
    """A `Stage`: one directory in staging."""

    def __init__(self, store: LocalStore, path: str) -> None:
        self._store = store
        self.files = NewFiles(path, _READ_ONLY)

    def publish(self, digest: Digest) -> bool:
        final = self._store.directory(digest)
        shard = self._store.make_shard(digest)
        self.files.sync()
        with translated(final):
            try:
                os.rename(self.files.directory, final)
            except OSError:
                if self._store.contains(digest):  # another process was first
                    return False
                raise
        sync_directory(shard)
        return True

    def replace(self, digest: Digest) -> None:
        with suppress(NotFound):  # another process has moved it already
            self._store.set_aside(digest)
        self.publish(digest)


def _is_shard(name: str) -> bool:
    return _SHARD.fullmatch(name) is not None


def _adapter(digest: Digest) -> tuple[str, str, str]:
    return _ADAPTERS, digest.hex[:2], digest.hex


def _recorded(subject: Digest) -> tuple[str, str, str]:
    return _RECORDS, subject.hex[:2], subject.hex
