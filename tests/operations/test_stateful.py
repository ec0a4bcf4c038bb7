"""A registry held against a model in plain Python: adding, naming, removing and losing the index, in any order."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from registry import Conflict, Digest, NotFound, Registry
from registry.core.records import EXPORT, REMOVAL
from registry.store import LocalStore
from tests.support.answers import lose_index
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint

RUNS = ("r1@1", "r1@2", "r2@1", "r2@2")
"""What each checkpoint is of: the first and the third give one adapter, from which the second was trained."""
CHILD, NAMES = 1, ("best", "prod")
PLACES, ALIASES = st.integers(0, len(RUNS) - 1), st.sampled_from(NAMES)


@cache
def prepared() -> tuple[list[Path], list[Digest]]:
    """The checkpoints and their adapters, made once for all examples."""
    root = Path(tempfile.mkdtemp(prefix="stateful-"))
    registry, checkpoints, digests = Registry(root / "home"), [], []
    for place, (of, seed) in enumerate(zip(RUNS, (0, 1, 0, 2), strict=True)):
        run, _, iteration = of.partition("@")
        base = {"base": "org/base"} | ({"adapter": str(digests[0])} if place == CHILD else {})
        saved = contents(lora_state(modules=MODULES[:1], seed=seed), iteration=int(iteration)) | {"step": place}
        config = {"run_id": run, "model": base, "lora": {"r": 4, "alpha": 8}}
        checkpoints.append(write_checkpoint(root / run, saved, iteration=int(iteration), config=config))
        digests.append(registry.add(checkpoints[-1]).digest)
    assert digests[0] == digests[2]
    shutil.rmtree(root / "home")
    return checkpoints, digests


@pytest.fixture(scope="module", autouse=True)
def _removed_afterwards() -> object:
    yield
    shutil.rmtree(prepared()[0][0].parents[2])


class Model(RuleBasedStateMachine):
    """`present` are the adapters that are there; `exported` the exports of each, as places of checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints, self.digests = prepared()
        self.home = Path(tempfile.mkdtemp(prefix="stateful-home-")) / "home"
        self.registry = Registry(self.home, note=self.told)
        self.present: set[Digest] = set()
        self.exported: dict[Digest, list[int]] = {}
        self.removals: dict[Digest, int] = {}
        self.moves: dict[str, list[Digest | None]] = {}
        self.lost = False

    def told(self, note: str) -> None:
        assert self.lost, note
        assert note.startswith("the index was missing: made anew from")

    def teardown(self) -> None:
        shutil.rmtree(self.home.parent)

    def named(self, name: str) -> Digest | None:
        return self.moves.get(name, [None])[-1]

    def holds(self, digest: Digest) -> list[str]:
        found = [f"alias {name}" for name in NAMES if self.named(name) == digest]
        child = self.digests[CHILD]
        return found + [f"child {child}"] * (digest == self.digests[0] and child in self.present)

    @rule(place=PLACES)
    def add(self, place: int) -> None:
        digest = self.digests[place]
        added = self.registry.add(self.checkpoints[place])
        known = self.exported.setdefault(digest, [])
        assert added.digest == digest
        assert added.outcome == ("already present" if digest in self.present else "added")
        assert added.new_export == (digest not in self.present or place not in known)
        if added.new_export:
            known.append(place)
        self.present.add(digest)

    @rule(name=ALIASES, place=PLACES)
    def set_alias(self, name: str, place: int) -> None:
        digest = self.digests[place]
        if digest not in self.present:
            with pytest.raises(NotFound):
                self.registry.set_alias(name, digest.hex)
            return
        changed = self.named(name) != digest
        assert self.registry.set_alias(name, digest.hex).changed == changed
        if changed:
            self.moves.setdefault(name, []).append(digest)

    @rule(name=ALIASES)
    def remove_alias(self, name: str) -> None:
        if self.named(name) is None:
            with pytest.raises(NotFound):
                self.registry.remove_alias(name)
            return
        self.registry.remove_alias(name)
        self.moves[name].append(None)

    @rule(place=PLACES, force=st.booleans())
    def remove(self, place: int, force: bool) -> None:
        digest = self.digests[place]
        holds = self.holds(digest)
        if digest not in self.present:
            with pytest.raises(NotFound):
                self.registry.remove(digest.hex, force=force)
        elif holds and not force:
            with pytest.raises(Conflict) as caught:
                self.registry.remove(digest.hex)
            assert caught.value.found == ", ".join(holds)
        else:
            assert [str(hold) for hold in self.registry.remove(digest.hex, force=force).overrode] == holds
            self.present.remove(digest)
            self.removals[digest] = self.removals.get(digest, 0) + 1

    @rule()
    def reindex(self) -> None:
        done = self.registry.reindex()
        assert done.damaged == ()
        assert all(each.added == each.removed == each.changed == 0 for each in done.changes)

    @rule()
    def lose_index(self) -> None:
        lose_index(self.home)
        self.registry, self.lost = Registry(self.home, note=self.told), True
        self.registry.newest(9)
        self.lost = False

    @invariant()
    def answers_agree(self) -> None:
        listed = {each.digest: each for each in self.registry.newest(99)}
        assert listed.keys() == self.present
        for digest in {*self.digests}:
            if digest not in self.present:
                with pytest.raises(NotFound, match="removed at" if digest in self.exported else "no such adapter"):
                    self.registry.show(digest.hex)
                continue
            shown = self.registry.show(digest.hex)
            assert shown == listed[digest]
            assert sorted(f"{each.run}@{each.iteration}" for each in shown.exports) == sorted(
                RUNS[place] for place in self.exported[digest]
            )
            assert list(shown.aliases) == [name for name in NAMES if self.named(name) == digest]
            assert self.registry.path(digest.hex)

    @invariant()
    def references_agree(self) -> None:
        meant = {
            of: digest
            for place, (of, digest) in enumerate(zip(RUNS, self.digests, strict=True))
            if place in self.exported.get(digest, ())
        }
        for reference in (*RUNS, *NAMES):
            digest = meant.get(reference) or self.named(reference)
            if digest in self.present:
                assert self.registry.resolve(reference) == digest
                continue
            with pytest.raises(NotFound) as caught:
                self.registry.resolve(reference)
            assert ("removed at" in str(caught.value)) == (digest is not None)
        standing = [(name, digest) for name in NAMES if (digest := self.named(name)) is not None]
        assert [(each.name, each.after) for each in self.registry.aliases()] == standing
        for name, moves in self.moves.items():
            assert [each.after for each in self.registry.alias_history(name)] == moves

    @invariant()
    def records_agree(self) -> None:
        store = LocalStore(str(self.home))
        assert {*store.digests()} == self.present
        assert store.unsettled() == []
        for digest in {*self.digests}:
            assert len(store.records(digest, EXPORT)) == len(self.exported.get(digest, ()))
            assert len(store.records(digest, REMOVAL)) == self.removals.get(digest, 0)


Model.TestCase.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_registry_agrees_with_a_model_in_plain_python = Model.TestCase
