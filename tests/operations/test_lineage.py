"""Lineage from real checkpoints: parents only from evidence, in any order of adding, and never a loop."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from registry import Ambiguous, Conflict, Digest, InvalidReference, NotFound, Refused, Registry, RegistryError
from registry.checkpoints import read_checkpoint
from registry.core import records
from registry.core.layout import MANIFEST, WEIGHTS
from registry.core.lineage import Edge, Kind, Lineage, Link, Node
from registry.operations.add import add
from registry.operations.export import prepare
from registry.store import LocalStore
from registry.store.local import LocalStage
from tests.support.answers import lose_index
from tests.support.runs import contents, lora_state, write_checkpoint

Made = Callable[..., Path]


@pytest.fixture
def registry(home: Path) -> Registry:
    return Registry(home)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Writes one checkpoint of a run. `seed` decides its tensors, `config` is added to what the run's config states."""
    count = itertools.count()

    def made(
        run: str | None, iteration: int, seed: int, *, adapter: object = None, resume: object = None, **lora: Any
    ) -> Path:
        config: dict[str, Any] = {"run_id": run, "model": {"base": "org/base", "revision": "main"}}
        if adapter is not None:
            config["model"]["adapter"] = str(adapter)
        if resume is not None:
            config["resume"] = {"checkpoint": str(resume)}
        saved = contents(lora_state(seed=seed), iteration=iteration, **lora)
        return write_checkpoint(tmp_path / f"copy{next(count)}" / "run", saved, iteration=iteration, config=config)

    return made


def checkpoint_of(path: Path) -> Digest:
    return read_checkpoint(str(path)).digest


def tensors_of(path: Path) -> Digest:
    return prepare(read_checkpoint(str(path))).tensors


def node(lineage: Lineage, kind: Kind, name: object) -> Node:
    """The one node of this kind with this name or digest."""
    (found,) = (
        each
        for each in lineage.nodes
        if each.kind is kind and str(name) in (each.facts.get("name"), each.facts.get("digest"))
    )
    return found


def links(lineage: Lineage) -> set[tuple[str, str, str]]:
    """The edges by the names and digests of their ends."""
    called = {each.key: each.facts.get("digest") or each.facts.get("name") for each in lineage.nodes}
    return {(called[edge.source], called[edge.target], edge.link.value) for edge in lineage.edges}


@pytest.mark.parametrize("stated", ["digest", "tensors"])
def test_warm_start_leads_from_an_adapter_to_the_run_and_what_it_exported(
    stated: str, registry: Registry, made: Made
) -> None:
    parent = made("first", 3, 0)
    one = registry.add(parent).digest
    start = one if stated == "digest" else tensors_of(parent)
    two = registry.add(made("second", 1, 1, adapter=start)).digest
    up = registry.lineage(two.hex, down=False)
    assert {
        ("org/base", "first", "trained"),
        ("first", str(checkpoint_of(parent)), "saved"),
        (str(checkpoint_of(parent)), str(one), "exported"),
        (str(one), "second", "warm-started"),
    } < links(up)
    assert node(up, Kind.RUN, "second").facts["same_tensors"] is (stated == "tensors")
    down = registry.lineage(one.hex, up=False)
    assert (str(one), "second", "warm-started") in links(down)
    assert node(down, Kind.ADAPTER, two).facts["known"]


def test_every_adapter_with_the_stated_tensors_may_be_the_start(registry: Registry, made: Made) -> None:
    plain, strong = made("first", 3, 0), made("first", 3, 0, alpha=16)
    starts = {registry.add(each).digest for each in (plain, strong)}
    child = registry.add(made("second", 1, 1, adapter=tensors_of(plain))).digest
    found = links(registry.lineage(child.hex, down=False))
    assert {(source, link) for source, target, link in found if target == "second"} == {
        ("org/base", "trained"),
        *((str(start), "warm-started") for start in starts),
    }


def test_resume_leads_from_a_checkpoint_to_another_run_but_not_within_one(registry: Registry, made: Made) -> None:
    three = made("first", 3, 0)
    registry.add(three)
    five = registry.add(made("first", 5, 1, resume=checkpoint_of(three))).digest
    other = registry.add(made("other", 5, 2, resume=checkpoint_of(three))).digest
    within = registry.lineage(five.hex)
    assert links(within).isdisjoint({(str(checkpoint_of(three)), "first", "resumed")})
    assert node(within, Kind.RUN, "first").facts["resumed_from_own"] is True
    assert node(within, Kind.RUN, "first").facts["resumed_from_iteration"] == 3
    across = registry.lineage(other.hex, down=False)
    assert (str(checkpoint_of(three)), "other", "resumed") in links(across)
    assert node(across, Kind.RUN, "other").facts["resumed_from_own"] is False
    assert links(registry.lineage(str(checkpoint_of(three)), up=False)) == {
        (str(checkpoint_of(three)), str(registry.resolve("first@3")), "exported"),
        (str(checkpoint_of(three)), "other", "resumed"),
        ("other", *_saved(registry, other)),
        (_saved(registry, other)[0], str(other), "exported"),
    }


def test_first_iteration_that_is_the_start_itself_is_told_as_unchanged_and_not_as_a_child(
    registry: Registry, made: Made
) -> None:
    one = registry.add(made("first", 3, 0)).digest
    again = made("second", 0, 0, adapter=one)
    assert registry.add(again).digest == one
    two = registry.add(made("second", 1, 1, adapter=one)).digest
    for target in (one.hex, two.hex, "second"):
        found = registry.lineage(target)
        assert not found.contradictions
        assert (str(checkpoint_of(again)), str(one), "exported") not in links(found)
        assert node(found, Kind.CHECKPOINT, checkpoint_of(again)).facts["unchanged"] == [str(one)]
    assert not [each for each in registry.lineage(one.hex, down=False).nodes if each.facts.get("name") == "second"]


def test_start_by_tensors_that_first_comes_back_with_another_alpha_is_not_its_own_ancestor(
    registry: Registry, made: Made
) -> None:
    parent = made("first", 3, 0)
    one = registry.add(parent).digest
    back = registry.add(made("second", 0, 0, adapter=tensors_of(parent), alpha=16)).digest
    assert back != one
    found = registry.lineage(back.hex, down=False)
    assert {(str(one), "second", "warm-started"), ("second", *_saved(registry, back))} < links(found)
    assert not found.contradictions


def _saved(registry: Registry, digest: Digest) -> tuple[str, str]:
    return str(registry.show(digest.hex).exports[0].checkpoint), "saved"


def test_run_without_a_name_hangs_on_its_start_and_base_by_its_checkpoints(registry: Registry, made: Made) -> None:
    one = registry.add(made("first", 3, 0)).digest
    path = made(None, 1, 1, adapter=one)
    two = registry.add(path).digest
    made_other = made(None, 2, 2, adapter=one)
    registry.add(made_other)
    checkpoint = str(checkpoint_of(path))
    found = registry.lineage(two.hex)
    assert {("org/base", checkpoint, "trained"), (str(one), checkpoint, "warm-started")} < links(found)
    assert str(checkpoint_of(made_other)) not in {end for edge in links(found) for end in edge}, "no sibling: no run"
    below = links(registry.lineage(one.hex, up=False))
    assert {target for source, target, link in below if link == "warm-started"} == {
        checkpoint,
        str(checkpoint_of(made_other)),
    }


def test_start_that_is_not_here_is_told_and_found_once_it_is_added(registry: Registry, made: Made) -> None:
    parent, elsewhere = made("first", 3, 0), made("away", 3, 5)
    expected = prepare(read_checkpoint(str(parent))).digest
    child = registry.add(made("second", 1, 1, adapter=expected)).digest
    resumed = registry.add(made("third", 1, 2, resume=checkpoint_of(elsewhere))).digest
    found = registry.lineage(child.hex)
    assert node(found, Kind.ADAPTER, expected).facts["known"] is False
    assert (str(expected), "second", "warm-started") in links(found)
    missing = registry.lineage(resumed.hex)
    assert node(missing, Kind.CHECKPOINT, checkpoint_of(elsewhere)).facts["known"] is False
    registry.add(parent)
    registry.add(elsewhere)
    found = registry.lineage(child.hex)
    assert node(found, Kind.ADAPTER, expected).facts["known"] is True
    assert ("org/base", "first", "trained") in links(found)
    assert ("away", str(checkpoint_of(elsewhere)), "saved") in links(registry.lineage(resumed.hex))


def test_order_of_adding_does_not_matter_nor_does_making_the_index_anew(tmp_path: Path, made: Made) -> None:
    parent = made("first", 3, 0)
    one = prepare(read_checkpoint(str(parent))).digest
    paths = [
        parent,
        made("second", 0, 0, adapter=one),
        made("second", 1, 1, adapter=tensors_of(parent)),
        made("third", 1, 2, resume=checkpoint_of(parent)),
    ]
    told = []
    for number, order in enumerate((paths, paths[::-1], paths[2:] + paths[:2])):
        registry = Registry(tmp_path / f"home{number}")
        for path in order:
            registry.add(path)
        targets = [one.hex, *map(str, paths), "first", "run:second", "third"]
        answers = [registry.lineage(target) for target in targets]
        lose_index(Path(registry.home))
        assert [Registry(registry.home).lineage(target) for target in targets] == answers
        told.append(answers)
    assert told[0] == told[1] == told[2]


def test_parent_given_by_hand_is_recorded_and_said_to_be(registry: Registry, made: Made) -> None:
    one = registry.add(made("first", 3, 0)).digest
    registry.set_alias("start", one.hex)
    child = registry.add(made("second", 1, 1), parent="start")
    assert (child.manifest["run"]["warm_start"], child.manifest["run"]["warm_start_source"]) == (one.hex, "option")
    assert (str(one), "second", "warm-started") in links(registry.lineage(child.digest.hex))
    stated = registry.add(made("third", 1, 2, adapter=one))
    assert stated.manifest["run"]["warm_start_source"] == "config"
    fresh = registry.add(made("fourth", 1, 3))
    assert (fresh.manifest["run"]["warm_start"], fresh.manifest["run"]["warm_start_source"]) == (None, None)


def test_parent_that_contradicts_the_config_is_refused_and_one_that_agrees_is_not(
    registry: Registry, made: Made
) -> None:
    parent = made("first", 3, 0)
    one, other = registry.add(parent).digest, registry.add(made("first", 4, 9)).digest
    path = made("second", 1, 1, adapter=one)
    with pytest.raises(
        Refused, match=r"config\.json.*model\.adapter.*another start.*found sha256.*expected sha256"
    ) as caught:
        registry.add(path, parent=other.hex)
    assert (caught.value.found, caught.value.expected) == (one, other)
    assert registry.add(path, parent="first@3").manifest["run"]["warm_start_source"] == "config"
    assert not registry.add(path).new_export
    by_tensors = registry.add(made("third", 1, 2, adapter=tensors_of(parent)), parent=one.hex)
    assert by_tensors.manifest["run"]["warm_start"] == one.hex
    assert by_tensors.manifest["run"]["warm_start_source"] == "option"
    with pytest.raises(NotFound):
        registry.add(made("fifth", 1, 4), parent="nothing")
    assert len(registry.newest(99)) == 4


def stored(registry: Registry) -> list[Digest]:
    return list(LocalStore(registry.home).digests())


@pytest.mark.parametrize("how", ["config", "option", "tensors", "resume"])
def test_start_that_descends_from_the_adapter_is_refused_before_anything_is_published(
    how: str, registry: Registry, made: Made
) -> None:
    late = made("third", 9, 7)
    first = prepare(read_checkpoint(str(late))).digest
    start = {"tensors": tensors_of(late)}.get(how, first)
    middle = registry.add(made("first", 1, 0, adapter=start)).digest
    last_path = made("second", 1, 1, adapter=middle)
    last = registry.add(last_path).digest
    stated: dict[str, Any] = {"config": {"adapter": last}, "tensors": {"adapter": tensors_of(last_path)}}.get(how, {})
    if how == "resume":
        stated = {"resume": checkpoint_of(last_path)}
    path = made("third", 9, 7, **stated)
    before = stored(registry)
    with pytest.raises(Conflict, match="descends from this adapter") as caught:
        registry.add(path, parent=last.hex if how == "option" else None)
    assert caught.value.key == str(first)
    assert stored(registry) == before
    assert LocalStore(registry.home).unsettled() == []
    assert list((Path(registry.home) / "records").rglob(f"{first.hex}/*")) == []
    assert registry.add(late).digest == first, "without that start it is no loop"
    assert {each.facts["name"] for each in registry.lineage(last.hex, down=False).nodes if each.kind is Kind.RUN} == {
        "first",
        "second",
        "third",
    }


def test_checkpoint_that_its_own_start_was_resumed_from_is_refused(registry: Registry, made: Made) -> None:
    path = made("first", 3, 0)
    child = registry.add(made("second", 1, 1, resume=checkpoint_of(path))).digest
    config = path.parents[1] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model": {"adapter": str(child)}}))
    with pytest.raises(Conflict, match="descends"):
        registry.add(path)


def test_checkpoint_whose_earlier_export_descends_from_the_adapter_is_refused(registry: Registry, made: Made) -> None:
    path = made("first", 3, 0, alpha=None)
    strong = prepare(read_checkpoint(str(path), alpha=16)).digest
    child = registry.add(made("second", 1, 1, adapter=strong)).digest
    config = path.parents[1] / "config.json"
    fresh = config.read_text()
    config.write_text(json.dumps(json.loads(fresh) | {"model": {"adapter": str(child)}}))
    registry.add(path, alpha=8)
    config.write_text(fresh)
    with pytest.raises(Conflict, match="stated of this checkpoint before"):
        registry.add(path, alpha=16)


def test_adapter_of_a_checkpoint_is_refused_as_its_own_start(registry: Registry, made: Made) -> None:
    path = made("first", 3, 0)
    one = registry.add(path).digest
    with pytest.raises(Conflict, match="descends"):
        registry.add(path, parent=one.hex)
    assert len(registry.show(one.hex).exports) == 1


def test_what_is_recorded_already_can_be_added_again_also_where_it_contradicts(registry: Registry, made: Made) -> None:
    paths = loop(made)
    store = LocalStore(registry.home)
    for number, path in enumerate(paths):
        add(store, registry._opened.index, prepare(read_checkpoint(str(path))), f"2026-01-01T00:00:0{number}.000000Z")
    again = [registry.add(path) for path in paths]
    assert [each.new_export for each in again] == [False, False]


def loop(made: Made) -> list[Path]:
    """Two checkpoints, of which each says that it started from the other's adapter."""
    one, two = made("one", 1, 1), made("two", 1, 2)
    first, second = (prepare(read_checkpoint(str(path))).digest for path in (one, two))
    return [made("one", 1, 1, adapter=second), made("two", 1, 2, adapter=first)]


def test_two_adds_at_once_that_close_a_loop_are_told_as_a_contradiction(registry: Registry, made: Made) -> None:
    """Each looks before the other has published: both are stored, and every walk ends."""
    paths = loop(made)
    looked, failures = threading.Barrier(2), []

    class Meeting(LocalStore):
        def stage(self) -> AbstractContextManager[LocalStage]:
            looked.wait(60)
            return super().stage()

    def run(path: Path) -> None:
        mine = Registry(registry.home)
        mine._store = Meeting(registry.home)
        try:
            mine.add(path)
        except RegistryError as error:
            failures.append(error)

    registry.newest(1)
    threads = [threading.Thread(target=run, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for target in ("one", "two", "one@1", "two@1", str(checkpoint_of(paths[0]))):
        for up, down in ((True, False), (False, True), (True, True)):
            found = registry.lineage(target, up=up, down=down)
            assert len([edge for edge in found.edges if edge.link is Link.WARM_STARTED]) <= 1
    assert len(registry.lineage("one@1", down=False).contradictions) == 1
    assert "descends from it" in registry.lineage("two@1", down=False).contradictions[0]


def removal(subject: Digest) -> records.Record:
    facts = {"format": 1, "reason": None, "removed_at": "2999-01-01T00:00:00.000000Z", "removed_by": "me@here"}
    return records.make(records.REMOVAL, subject, facts)


def test_removed_adapters_stay_in_lineage_and_are_marked(registry: Registry, made: Made) -> None:
    one = registry.add(made("first", 3, 0)).digest
    two = registry.add(made("second", 1, 1, adapter=one)).digest
    registry.set_alias("best", one.hex)
    store = LocalStore(registry.home)
    store.put_record(removal(one))
    store.set_aside(one)
    found = registry.lineage(two.hex)
    assert node(found, Kind.ADAPTER, one).facts["removed_at"] == "2999-01-01T00:00:00.000000Z"
    assert (str(one), "second", "warm-started") in links(found)
    for target in (one.hex, one.hex[:10], "best", "first@3"):
        assert registry.lineage(target).asked == (f"adapter:{one.hex}",)
    with pytest.raises(NotFound):
        registry.resolve(one.hex)


def test_target_is_found_by_each_of_its_names(registry: Registry, made: Made) -> None:
    path = made("first", 3, 0)
    one, checkpoint = registry.add(path).digest, checkpoint_of(path)
    adapter, saved = (f"adapter:{one.hex}",), (f"checkpoint:{checkpoint.hex}",)
    weights = Path(registry.path(one.hex)) / WEIGHTS
    for target, asked in (
        (str(one), adapter),
        (f" {one.hex[:8].upper()} ", adapter),
        ("first@latest", adapter),
        ("adapter:first@3", adapter),
        (str(weights), adapter),
        (str(checkpoint), saved),
        (checkpoint.hex[:8], saved),
        (f"checkpoint:{checkpoint.hex[:8]}", saved),
        (f"checkpoint:{path}", saved),
        (str(path), saved),
        (str(path / "trainer.pt"), saved),
    ):
        assert registry.lineage(target).asked == asked, target
    for target in ("first", "run:first"):
        assert [each.partition("#")[0] for each in registry.lineage(target).asked] == ["run:first"]


def test_name_of_several_things_is_ambiguous_and_each_is_offered(registry: Registry, made: Made) -> None:
    one = registry.add(made("best", 3, 0)).digest
    registry.set_alias("best", one.hex)
    with pytest.raises(Ambiguous) as caught:
        registry.lineage("best")
    assert caught.value.candidates == (f"adapter:{one.hex}", "run:best")
    assert registry.lineage("adapter:best").asked == (f"adapter:{one.hex}",)
    assert [registry.lineage(each).asked for each in caught.value.candidates] == [
        (f"adapter:{one.hex}",),
        registry.lineage("run:best").asked,
    ]
    registry.add(made("best", 3, 1))
    with pytest.raises(Ambiguous):
        registry.lineage("best@3")
    two = registry.add(made(one.hex[:8], 1, 2)).digest
    with pytest.raises(Ambiguous, match=f"run:{one.hex[:8]}"):
        registry.lineage(one.hex[:8])
    assert registry.lineage(f"{one.hex[:8]}@1").asked == (f"adapter:{two.hex}",)


def test_run_with_the_name_of_no_reference_is_found(registry: Registry, made: Made) -> None:
    for number, run in enumerate(("a@b", "über/läufe", "x y", "abc", "run:x", "-n", "none")):
        registry.add(made(run, 1, number))
        (asked,) = registry.lineage(run if run != "run:x" else "run:run:x").asked
        assert asked.startswith(f"run:{run}#")


@pytest.mark.parametrize("target", ["", " ", "run:", "run:x", "checkpoint:ffff", "adapter:ffff", "ffff", "x@1", "/x/y"])
def test_nothing_is_found_under_a_name_that_nothing_has(target: str, registry: Registry, made: Made) -> None:
    with pytest.raises((NotFound, InvalidReference)):
        registry.lineage(target)
    assert not Path(registry.home).exists(), "asking makes no registry"
    registry.add(made("first", 3, 0))
    with pytest.raises((NotFound, InvalidReference)):
        registry.lineage(target)


def test_path_of_what_was_not_added_says_what_to_do(registry: Registry, made: Made, tmp_path: Path) -> None:
    registry.add(made("first", 3, 0))
    with pytest.raises(NotFound, match=r"trainer\.pt.*aorlta-reg add"):
        registry.lineage(str(made("second", 1, 1)))
    with pytest.raises(NotFound, match=r"holds no trainer\.pt"):
        registry.lineage(str(tmp_path))


def test_adapter_that_the_index_has_not_heard_of_is_told_all_the_same(
    registry: Registry, made: Made, home: Path
) -> None:
    registry.add(made("first", 3, 0))
    copy = Registry(home)
    lose_index(home)
    two = prepare(read_checkpoint(str(made("second", 1, 1))))
    registry.newest(1)
    store = LocalStore(str(home))
    added, exports = add(store, registry._opened.index, two, "2026-01-01T00:00:00.000000Z")
    for each in exports:
        store.settle(each)  # as if an old copy of the index had been put back since
    assert registry.lineage(added.digest.hex, down=False).asked == (f"adapter:{added.digest.hex}",)
    assert copy.lineage("second")


def test_missing_index_lets_add_store_and_the_loop_is_told_later(
    registry: Registry, made: Made, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from registry.operations import mend

    paths = loop(made)
    registry.add(paths[0])
    lose_index(home)
    monkeypatch.setattr(mend, "FEW", 0)
    late = Registry(home, note=lambda _: None)
    added = late.add(paths[1])
    assert added.outcome == "added"
    monkeypatch.undo()
    assert Registry(home).lineage("two@1", down=False).contradictions
    assert json.loads((Path(late.path(added.digest.hex)) / MANIFEST).read_text())["run"]["warm_start"]


def test_edges_name_nodes_and_are_of_the_documented_kinds(registry: Registry, made: Made) -> None:
    one = registry.add(made("first", 3, 0)).digest
    found = registry.lineage(one.hex)
    base, run, checkpoint, adapter = (each.key for each in found.nodes)
    assert found.edges == (
        Edge(base, run, Link.TRAINED),
        Edge(checkpoint, adapter, Link.EXPORTED),
        Edge(run, checkpoint, Link.SAVED),
    )
    assert [each.kind.value for each in found.nodes] == ["base", "run", "checkpoint", "adapter"]
