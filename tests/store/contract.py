"""What every store must do. A backend's tests subclass `StoreContract` and give a `Backend`, which sees the storage
without the store: what a test puts there or looks for there is not put or found by the code under test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import pytest

from registry.core import records
from registry.core.digest import Digest
from registry.core.errors import IntegrityError, NotFound, RegistryError, StorageError
from registry.store import Store

FILES = {"weights.bin": bytes(range(256)) * 5000, "config.json": b"{}\n", "empty": b""}
OTHER = {"weights.bin": b"other"}


class Backend(Protocol):
    """One store, and its storage seen from outside."""

    store: Store

    def plant(self, digest: Digest, files: Mapping[str, bytes]) -> None:
        """Put an adapter there."""

    def adapters(self) -> dict[Digest, dict[str, bytes]]:
        """All adapters that are there."""

    def plant_record(self, subject: Digest, name: str, data: bytes) -> None:
        """Put a record there."""

    def damage_record(self, subject: Digest, name: str) -> None:
        """Change a byte of a record that is there."""

    def records(self) -> dict[tuple[Digest, str], bytes]:
        """All records that are there, by subject and name."""

    def litter(self) -> list[str]:
        """What is there beside adapters, records and evidence."""


def digest_of(text: str) -> Digest:
    return Digest(hashlib.sha256(text.encode()).hexdigest())


A, B = digest_of("a"), digest_of("b")


def publish(store: Store, digest: Digest, files: Mapping[str, bytes] = FILES) -> bool:
    with store.stage() as stage:
        for name, data in files.items():
            assert stage.files.write(name, [data[:100], memoryview(data)[100:]]) == len(data)
        stage.files.sync()
        return stage.publish(digest)


def interrupted() -> Iterator[bytes]:
    yield b"x"
    raise KeyboardInterrupt


class StoreContract:
    """The suite. `backend` is a fixture of the subclass."""

    def test_empty_store_answers_without_being_made(self, backend: Backend) -> None:
        store = backend.store
        assert not store.contains(A)
        assert list(store.digests()) == store.find(A.hex[:4], 9) == store.records(A) == []
        assert list(store.subjects()) == store.unsettled() == []
        with pytest.raises(NotFound):
            store.open(A, "weights.bin")
        assert backend.adapters() == backend.records() == {}
        assert backend.litter() == []

    def test_published_files_are_there_as_they_were_written(self, backend: Backend) -> None:
        assert publish(backend.store, A)
        assert backend.adapters() == {A: FILES}
        assert backend.store.contains(A)
        assert backend.litter() == []

    def test_stored_files_are_read_as_they_are(self, backend: Backend) -> None:
        backend.plant(A, FILES)
        for name, data in FILES.items():
            with backend.store.open(A, name) as file:
                assert file.read() == data

    def test_missing_file_of_a_stored_adapter_is_not_found(self, backend: Backend) -> None:
        backend.plant(A, FILES)
        with pytest.raises(NotFound):
            backend.store.open(A, "missing")

    def test_nothing_staged_is_visible(self, backend: Backend) -> None:
        store = backend.store
        with store.stage() as stage:
            stage.files.write("weights.bin", [b"x"])
            stage.files.sync()
            assert list(store.digests()) == []
            assert not store.contains(A)
            assert backend.adapters() == {}
        assert backend.litter() == []

    def test_staged_file_is_read_back_and_never_written_twice(self, backend: Backend) -> None:
        with backend.store.stage() as stage:
            stage.files.write("weights.bin", [b"first"])
            with pytest.raises(StorageError):
                stage.files.write("weights.bin", [b"second"])
            with stage.files.open("weights.bin") as file:
                assert file.read() == b"first"

    def test_failure_while_staging_leaves_nothing(self, backend: Backend) -> None:
        with pytest.raises(KeyboardInterrupt), backend.store.stage() as stage:
            stage.files.write("weights.bin", interrupted())
        assert backend.adapters() == {}
        assert backend.litter() == []

    def test_stages_do_not_meet(self, backend: Backend) -> None:
        with backend.store.stage() as one, backend.store.stage() as two:
            one.files.write("weights.bin", [b"one"])
            two.files.write("weights.bin", [b"two"])
            assert two.publish(B)
            assert one.publish(A)
        assert backend.adapters() == {A: {"weights.bin": b"one"}, B: {"weights.bin": b"two"}}

    def test_publishing_over_an_adapter_changes_nothing_and_says_so(self, backend: Backend) -> None:
        backend.plant(A, OTHER)
        assert not publish(backend.store, A)
        assert backend.adapters() == {A: OTHER}
        assert backend.litter() == []

    def test_replacing_gives_the_new_files_only(self, backend: Backend) -> None:
        backend.plant(A, OTHER | {"stale": b"stale"})
        with backend.store.stage() as stage:
            for name, data in FILES.items():
                stage.files.write(name, [data])
            stage.replace(A)
        assert backend.adapters() == {A: FILES}
        assert backend.litter() == []

    def test_removed_adapter_is_gone_whole_and_no_other(self, backend: Backend) -> None:
        store, record = backend.store, records.make(records.EXPORT, A, {"n": 1})
        assert publish(store, A)
        backend.plant(B, OTHER)
        store.put_record(record)
        assert store.remove(A)
        assert backend.adapters() == {B: OTHER}
        assert not store.contains(A)
        assert list(store.digests()) == [B]
        with pytest.raises(NotFound):
            store.open(A, "weights.bin")
        assert backend.records() == {(A, record.name): record.data}, "what is known of it stays"
        assert backend.litter() == []

    def test_removing_what_is_not_there_changes_nothing_and_says_so(self, backend: Backend) -> None:
        assert not backend.store.remove(A)
        assert backend.adapters() == {}
        backend.plant(A, FILES)
        assert backend.store.remove(A)
        assert not backend.store.remove(A)
        assert publish(backend.store, A), "and it can be published again"
        assert backend.adapters() == {A: FILES}

    def test_reader_of_a_removed_adapter_reads_on(self, backend: Backend) -> None:
        backend.plant(A, FILES)
        with backend.store.open(A, "weights.bin") as file:
            start = file.read(10)
            backend.store.remove(A)
            assert start + file.read() == FILES["weights.bin"]

    def test_digests_come_sorted_and_are_found_by_prefix(self, backend: Backend) -> None:
        stem = "abcd" + "0" * 58
        same = [Digest(stem + end) for end in ("01", "02", "10")]
        near = [Digest("abce" + "0" * 60), Digest("ab" + "0" * 62), Digest("ff" * 32)]
        for digest in (*reversed(same), *near):
            backend.plant(digest, OTHER)
        store = backend.store
        assert list(store.digests()) == sorted((*same, *near))
        assert store.find("abcd", 9) == same
        assert store.find("abcd", 2) == same[:2]
        assert store.find("ab", 9) == [near[1], *same, near[0]]
        assert store.find(same[1].hex, 9) == [same[1]]
        assert store.find("abcf", 9) == store.find("00", 9) == []

    def test_record_comes_back_whole_and_only_for_its_subject(self, backend: Backend) -> None:
        one, two = (records.make(records.EXPORT, A, {"n": n, "text": "é\n"}) for n in (1, 2))
        other = records.make(records.EXPORT, B, {"n": 1})
        for record in (one, two, other):
            backend.store.put_record(record)
        assert backend.records() == {(each.subject, each.name): each.data for each in (one, two, other)}
        found = backend.store.records(A, records.EXPORT)
        assert [each.name for each in found] == sorted((one.name, two.name))
        assert {each.digest: (each.kind, each.subject, each.predicate, each.data) for each in found} == {
            each.digest: (each.kind, each.subject, each.predicate, each.data) for each in (one, two)
        }
        assert backend.litter() == []

    def test_record_that_is_there_is_not_written_again(self, backend: Backend) -> None:
        record = records.make(records.EXPORT, A, {"n": 1})
        backend.store.put_record(record)
        backend.store.put_record(replace(record, data=b"never written"))
        assert backend.records() == {(A, record.name): record.data}

    def test_record_that_does_not_match_its_name_is_an_integrity_error(self, backend: Backend) -> None:
        record = records.make(records.EXPORT, A, {"n": 1})
        backend.plant_record(A, record.name, record.data.replace(b"1", b"2"))
        with pytest.raises(IntegrityError) as caught:
            backend.store.records(A, records.EXPORT)
        assert record.name in str(caught.value)

    def test_record_planted_by_another_program_is_read(self, backend: Backend) -> None:
        record = records.make(records.EXPORT, A, {"n": 1})
        backend.plant_record(A, record.name, record.data)
        assert [each.data for each in backend.store.records(A)] == [record.data]

    def test_subjects_are_those_with_records_stored_or_not(self, backend: Backend) -> None:
        for subject in (B, A):
            backend.plant_record(subject, "export-0.json", b"not even a record")
        backend.plant(digest_of("c"), FILES)
        assert list(backend.store.subjects()) == sorted((A, B))

    def test_damaged_records_are_left_out_where_someone_is_told(self, backend: Backend) -> None:
        sound, bad = (records.make(records.EXPORT, A, {"n": n}) for n in (1, 2))
        backend.store.put_record(sound)
        backend.store.put_record(bad)
        backend.damage_record(A, bad.name)
        told: list[RegistryError] = []
        assert [each.digest for each in backend.store.records(A, refused=told.append)] == [sound.digest]
        (error,) = told
        assert isinstance(error, IntegrityError)
        assert bad.name in str(error)

    def test_records_of_other_kinds_are_not_looked_at(self, backend: Backend) -> None:
        record = records.make(records.EXPORT, A, {"n": 1})
        backend.store.put_record(record)
        bad = records.make(records.COMPARISON, A, {"n": 1})
        backend.store.put_record(bad)
        backend.damage_record(A, bad.name)
        assert [each.digest for each in backend.store.records(A, records.EXPORT)] == [record.digest]
        with pytest.raises(IntegrityError, match=bad.name):
            backend.store.records(A)

    def test_new_record_is_unsettled_until_it_is_settled(self, backend: Backend) -> None:
        store, record = backend.store, records.make(records.EXPORT, A, {"n": 1})
        store.put_record(record)
        (found,) = store.unsettled()
        assert (found.subject, found.name, found.data) == (A, record.name, record.data)
        store.settle(record)
        assert store.unsettled() == []
        store.settle(record)
        store.put_record(record)
        assert store.unsettled() == [], "it is not new"
        assert backend.records() == {(A, record.name): record.data}

    def test_announced_record_is_no_record_yet(self, backend: Backend) -> None:
        store, record = backend.store, records.make(records.COMPARISON, A, {"n": 1})
        store.announce(record)
        store.announce(replace(record, data=b"never written"))
        assert [each.digest for each in store.unsettled()] == [record.digest]
        assert list(store.subjects()) == store.records(A) == []
        assert backend.records() == {}
        store.put_record(record)
        assert [each.digest for each in store.records(A)] == [record.digest]
        assert [each.digest for each in store.unsettled()] == [record.digest]
        assert backend.litter() == []
