"""The seal: what a stored manifest is held against, and what is damage and what only a writer that was killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from registry import Digest, IntegrityError, NotFound, Registry
from registry.core import jsontext, records
from registry.core.layout import CONFIG, MANIFEST, WEIGHTS
from registry.core.records import Record
from registry.operations import seal
from registry.store import LocalStore, Refused
from tests.support.runs import contents, lora_state, write_checkpoint
from tests.support.trees import rewrite

OTHER = Digest("e" * 64)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Digest]:
    root = tmp_path_factory.mktemp("made")
    return root / "home", Registry(root / "home").add(write_checkpoint(root / "run", contents(lora_state()))).digest


@pytest.fixture
def digest(made: tuple[Path, Digest]) -> Digest:
    return made[1]


@pytest.fixture
def store(made: tuple[Path, Digest], tmp_path: Path) -> LocalStore:
    shutil.copytree(made[0], tmp_path / "home")
    return LocalStore(str(tmp_path / "home"))


def stated(store: LocalStore, digest: Digest) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(Path(store.directory(digest), MANIFEST).read_bytes())
    return manifest


def forget(store: LocalStore, digest: Digest) -> None:
    """Lose the adapter's records, as if its writer had been killed before it wrote any."""
    for record in store.records(digest):
        assert record.path is not None
        Path(record.path).unlink()


def restate(store: LocalStore, digest: Digest) -> Record:
    """Have the stored manifest state another export than the recorded one; the record of that, which is nowhere yet."""
    manifest = {**stated(store, digest), "exported_at": "2026-01-01T00:00:00.000000Z"}
    rewrite(Path(store.directory(digest), MANIFEST), jsontext.pretty(manifest))
    return records.make(records.EXPORT, digest, manifest)


def digests(found: tuple[Record, ...]) -> list[Digest]:
    return [each.digest for each in found]


def test_manifest_without_any_record_makes_the_one_that_is_missing(store: LocalStore, digest: Digest) -> None:
    (recorded,) = store.records(digest)
    assert (seal.read_seal(store, digest).missing, digests(seal.read_seal(store, digest).exports)) == (
        (),
        [recorded.digest],
    )
    forget(store, digest)
    sealed = seal.read_seal(store, digest)
    assert digests(sealed.missing) == digests(sealed.exports) == [recorded.digest]


def test_export_that_is_announced_counts_beside_those_that_are_recorded(store: LocalStore, digest: Digest) -> None:
    (recorded,) = store.records(digest)
    waiting = restate(store, digest)
    store.announce(waiting)
    sealed = seal.read_seal(store, digest)
    assert digests(sealed.missing) == [waiting.digest]
    assert digests(sealed.exports) == [recorded.digest, waiting.digest]


def test_export_that_is_recorded_and_announced_still_is_missing_nowhere(store: LocalStore, digest: Digest) -> None:
    (recorded,) = store.records(digest)
    store.announce(recorded)
    sealed = seal.read_seal(store, digest)
    assert (sealed.missing, digests(sealed.exports)) == ((), [recorded.digest])


def test_adapter_that_is_not_there_is_not_found_and_one_without_a_file_is_damaged(
    store: LocalStore, digest: Digest
) -> None:
    for ask in (seal.read_seal, seal.verify):
        with pytest.raises(NotFound):
            ask(store, OTHER)
    Path(store.directory(digest), MANIFEST).unlink()
    for ask in (seal.read_seal, seal.verify):
        with pytest.raises(IntegrityError, match="a stored file is missing") as caught:
            ask(store, digest)
        assert (caught.value.path, caught.value.key) == (MANIFEST, str(digest))


@pytest.mark.parametrize("of", ["another adapter", "another kind"])
def test_manifest_is_not_that_of_what_was_announced_of_something_else(
    of: str, store: LocalStore, digest: Digest
) -> None:
    waiting = restate(store, digest)
    kind, subject = (records.EXPORT, OTHER) if of == "another adapter" else (records.COMPARISON, digest)
    store.announce(records.make(kind, subject, waiting.predicate))
    with pytest.raises(IntegrityError, match="in none of its records") as caught:
        seal.read_seal(store, digest)
    assert (caught.value.path, caught.value.key, caught.value.hint) == (MANIFEST, str(digest), seal.REPAIR)


def test_only_what_is_announced_of_the_adapter_and_is_of_the_kind_is_told(store: LocalStore, digest: Digest) -> None:
    for number, (kind, subject) in enumerate(
        (kind, subject) for kind in (records.EXPORT, records.REMOVAL) for subject in (digest, OTHER)
    ):
        store.announce(records.make(kind, subject, {"n": number}))
    assert [each.predicate for each in seal.announced(store, digest)] == [{"n": 0}]
    assert [each.predicate for each in seal.announced(store, OTHER, records.REMOVAL)] == [{"n": 3}]


class Finishing(LocalStore):
    """A store in which a writer records and settles an export between two looks of ours: the one seam used here."""

    def __init__(self, home: str, waiting: Record) -> None:
        super().__init__(home)
        self.waiting = waiting

    def unsettled(self, refused: Refused | None = None) -> list[Record]:
        self.put_record(self.waiting)
        self.settle(self.waiting)
        return super().unsettled(refused)


def test_export_that_its_writer_has_just_recorded_is_no_damage(store: LocalStore, digest: Digest) -> None:
    (recorded,) = store.records(digest)
    waiting = restate(store, digest)
    store.announce(waiting)
    sealed = seal.read_seal(Finishing(str(Path(store.directory(digest)).parents[2]), waiting), digest)
    assert sealed.missing == ()
    assert {*digests(sealed.exports)} == {recorded.digest, waiting.digest}


NO_ADAPTER: dict[str, object] = {
    "no JSON": b"{",
    "no files": {},
    "a file without a digest": {WEIGHTS: {}},
    "no mapping": [],
    "no digest": {WEIGHTS: {"sha256": "f" * 63}, CONFIG: {"sha256": "f" * 64}},
}


@pytest.mark.parametrize("damage", NO_ADAPTER)
def test_manifest_that_states_no_digests_is_damage_where_nothing_is_recorded(
    damage: str, store: LocalStore, digest: Digest
) -> None:
    forget(store, digest)
    states = NO_ADAPTER[damage]
    data = states if isinstance(states, bytes) else jsontext.pretty({**stated(store, digest), "adapter": states})
    rewrite(Path(store.directory(digest), MANIFEST), data)
    with pytest.raises(IntegrityError, match="manifest is damaged") as caught:
        seal.read_seal(store, digest)
    assert (caught.value.path, caught.value.key, caught.value.hint) == (MANIFEST, str(digest), seal.REPAIR)


def test_manifest_of_another_adapter_is_damage_where_nothing_is_recorded(store: LocalStore, digest: Digest) -> None:
    forget(store, digest)
    manifest = stated(store, digest)
    manifest["adapter"][WEIGHTS]["sha256"] = OTHER.hex
    rewrite(Path(store.directory(digest), MANIFEST), jsontext.pretty(manifest))
    with pytest.raises(IntegrityError, match="of another adapter") as caught:
        seal.read_seal(store, digest)
    assert (caught.value.found, caught.value.expected) == (OTHER, digest)
