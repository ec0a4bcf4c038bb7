"""`compare`, and `add` with a base: what was found is kept with the adapter, once, and the exit code says it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.core.comparison import Verdict
from registry.core.errors import IntegrityError, NotFound, Refused
from registry.core.records import COMPARISON
from registry.store import LocalStore
from tests.cli.conftest import Shelf
from tests.cli.test_imports import loaded
from tests.support.process import CommandLine
from tests.support.trees import flip, snapshot
from tests.wired.layout import tensor_sha256
from tests.wired.trainer import TrainedRun, train

pytestmark = pytest.mark.slow
ENGINES = ("engine-0", "engine-1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Three iterations, served to two engines."""
    root = tmp_path_factory.mktemp("compare")
    return train(root / "run", root / "base", engines=ENGINES)


@pytest.fixture(scope="module")
def withheld(run: TrainedRun) -> TrainedRun:
    """The same, but one engine got the base."""
    place = run.run_dir.parent / "withheld"
    return train(place, run.base_dir, engines=ENGINES, withhold=["engine-1"], iterations=1, run_id="withheld")


@pytest.fixture
def registry(home: Path) -> Registry:
    return Registry(home)


def served_to(run: TrainedRun, number: int = 1) -> Path:
    return run.run_dir / "served" / f"iter-{number}"


def records(home: Path) -> list[Path]:
    return sorted(home.glob("records/*/*/comparison-*.json"))


def rows(home: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(home / "index.sqlite") as connection:
        found = connection.execute("SELECT engine, verdict FROM comparisons ORDER BY id").fetchall()
    connection.close()
    return found


def test_every_iteration_of_a_run_is_identical_and_is_kept(run: TrainedRun, registry: Registry) -> None:
    for iteration in run.iterations:
        digest = str(registry.add(iteration.checkpoint).digest)
        compared = registry.compare(digest, run.base_dir, [served_to(run, iteration.number)])
        assert compared.comparison.verdict is Verdict.IDENTICAL
        assert compared.comparison.recipe == "fp32"
        shown = registry.show(digest)
        assert shown.verdict is Verdict.IDENTICAL
        assert [each.engine for each in shown.comparisons] == list(ENGINES)
        assert {each.record for each in shown.comparisons} == {compared.record.digest}
    assert len(records(Path(registry.home))) == 3
    assert rows(Path(registry.home)) == [(engine, "identical") for _ in range(3) for engine in ENGINES]


def test_one_iterations_adapter_is_not_what_another_was_served(run: TrainedRun, registry: Registry) -> None:
    digest = str(registry.add(run.iterations[0].checkpoint).digest)
    assert registry.compare(digest, run.base_dir, [served_to(run, 2)]).comparison.verdict is Verdict.DIFFERENT


def test_the_record_says_what_was_found_and_under_which_conditions(run: TrainedRun, registry: Registry) -> None:
    digest = registry.add(run.last.checkpoint).digest
    compared = registry.compare(str(digest), run.base_dir, [served_to(run, 3)])
    (record,) = LocalStore(registry.home).records(digest, COMPARISON)
    assert (record.digest, record.subject) == (compared.record.digest, digest)
    facts = record.predicate
    assert (facts["verdict"], facts["passed"], facts["recipe"]) == ("identical", True, "fp32")
    assert facts["conditions"] == {"torch": torch.__version__, "device": "cpu", "threads": 1}
    assert facts["base_digest"] == compared.comparison.base_digest.hex
    assert facts["base_path"] == str(run.base_dir)
    assert facts["served_paths"] == [str(served_to(run, 3))]
    assert facts["all_lora_b_zero"] is False
    assert [each["engine"] for each in facts["engines"]] == list(ENGINES)
    engine = facts["engines"][0]
    assert engine["served_digest"] == compared.comparison.engines[0].served_digest.hex
    assert engine["counts"]["identical"] == len(run.last.latent) // 2
    assert engine["survival"]["projected"] == pytest.approx(1, abs=0.05)
    assert engine["ulp_histogram"] == {}
    (row, _) = registry.show(str(digest)).comparisons
    assert (row.surviving, row.rounded_away) == tuple(engine["survival"].values())
    assert (row.recipe, row.device, row.threads, row.torch) == ("fp32", "cpu", 1, torch.__version__)
    assert (row.base_digest.hex, row.served_digest.hex) == (facts["base_digest"], engine["served_digest"])
    assert (row.compared_at, row.rounding) == (facts["compared_at"], None)


def test_comparing_again_keeps_one_record_and_one_row_for_each_engine(
    run: TrainedRun, registry: Registry, tmp_path: Path
) -> None:
    digest = str(registry.add(run.last.checkpoint).digest)
    first = registry.compare(digest, run.base_dir, [served_to(run, 3)])
    shutil.copytree(served_to(run, 3), tmp_path / "elsewhere")
    for workers, place in ((1, served_to(run, 3)), (4, tmp_path / "elsewhere")):
        again = Registry(registry.home).compare(digest, run.base_dir, [place], workers=workers)
        assert again.record.data == first.record.data
    assert len(records(Path(registry.home))) == 1
    assert len(rows(Path(registry.home))) == 2


def test_other_evidence_or_another_recipe_is_another_record(run: TrainedRun, registry: Registry) -> None:
    digest = str(registry.add(run.last.checkpoint).digest)
    registry.compare(digest, run.base_dir, [run.last.served["engine-0"]])
    registry.compare(digest, run.base_dir, [run.last.served["engine-1"]])
    found = registry.compare(digest, run.base_dir, [run.last.served["engine-0"]], "low-precision")
    assert found.comparison.passed is False
    assert len(records(Path(registry.home))) == 3
    assert registry.show(digest).verdict is Verdict.DIFFERENT, "the latest one"


def test_a_damaged_adapter_is_not_compared(run: TrainedRun, registry: Registry) -> None:
    digest = registry.add(run.last.checkpoint).digest
    flip(Path(registry.path(str(digest))) / "adapter_model.safetensors")
    with pytest.raises(IntegrityError):
        registry.compare(str(digest), run.base_dir, [served_to(run, 3)])
    assert records(Path(registry.home)) == []


def test_what_cannot_be_compared_is_refused_and_not_recorded(run: TrainedRun, registry: Registry) -> None:
    digest = str(registry.add(run.last.checkpoint).digest)
    for base, served, recipe, error in (
        (run.base_dir, served_to(run, 3), "bf16", Refused),
        (run.base_dir / "missing", served_to(run, 3), "auto", NotFound),
        (run.base_dir, run.base_dir / "missing", "auto", NotFound),
        (run.base_dir, run.last.checkpoint, "auto", NotFound),
        (run.base_dir, run.base_dir / "config.json", "auto", Refused),
    ):
        with pytest.raises(error):
            registry.compare(digest, base, [served], recipe)
    assert records(Path(registry.home)) == []


def test_an_engine_that_was_served_nan_is_recorded_as_different(
    run: TrainedRun, registry: Registry, tmp_path: Path
) -> None:
    served = load_file(run.last.served["engine-0"])
    name = next(name for name in served if name.endswith("gate_proj.weight"))
    served[name][0, 0] = torch.nan
    save_file(served, tmp_path / "engine.safetensors")
    digest = str(registry.add(run.last.checkpoint).digest)
    compared = registry.compare(digest, run.base_dir, [tmp_path / "engine.safetensors"])
    assert compared.comparison.verdict is Verdict.DIFFERENT
    assert json.loads(records(Path(registry.home))[0].read_bytes())["predicate"]["engines"][0]["survival"] is None


def test_the_same_evidence_three_times_is_three_engines(run: TrainedRun, registry: Registry) -> None:
    digest = str(registry.add(run.last.checkpoint).digest)
    registry.compare(digest, run.base_dir, [run.last.served["engine-0"]] * 3)
    assert len({engine for engine, _ in rows(Path(registry.home))}) == 3


def test_a_path_that_is_not_utf8_can_be_compared(run: TrainedRun, registry: Registry, tmp_path: Path) -> None:
    place = tmp_path / b"eng\xffine.safetensors".decode("utf-8", "surrogateescape")
    shutil.copy(run.last.served["engine-0"], place)
    digest = str(registry.add(run.last.checkpoint).digest)
    assert registry.compare(digest, run.base_dir, [place]).comparison.verdict is Verdict.IDENTICAL
    ((engine, _),) = rows(Path(registry.home))
    assert "udcff" in engine


def test_the_index_is_filled_from_the_record_where_it_lost_it(run: TrainedRun, registry: Registry) -> None:
    digest = str(registry.add(run.last.checkpoint).digest)
    registry.compare(digest, run.base_dir, [served_to(run, 3)])
    before = registry.show(digest)
    for file in Path(registry.home).glob("index.sqlite*"):
        file.unlink()
    assert Registry(registry.home).show(digest) == before


def test_compare_leaves_adapter_base_and_evidence_as_they_were(run: TrainedRun, registry: Registry) -> None:
    digest = str(registry.add(run.last.checkpoint).digest)
    places = (run.base_dir, served_to(run, 3), Path(registry.path(digest)))
    before = snapshot(*places)
    registry.compare(digest, run.base_dir, [served_to(run, 3)])
    assert snapshot(*places) == before


def test_the_command_passes_and_prints_the_document(run: TrainedRun, cli: CommandLine) -> None:
    digest = str(Registry(cli.home).add(run.last.checkpoint).digest)
    done = cli("compare", digest, "--base", run.base_dir, "--served", served_to(run, 3), "--json", "--threads", "2")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert list(document) == [
        "digest",
        "verdict",
        "passed",
        "recipe",
        "conditions",
        "base_digest",
        "record",
        "notes",
        "engines",
    ]
    assert (document["digest"], document["verdict"], document["passed"]) == (digest, "identical", True)
    assert list(document["engines"][0]) == [
        "engine",
        "verdict",
        "served_digest",
        "counts",
        "ulp_histogram",
        "survival",
        "tensors",
        "stated",
    ]
    text = cli.ok("compare", digest, "--base", run.base_dir, "--served", served_to(run, 3))
    for part in ("identical", "engine-1", "fp32", torch.__version__, "of the update arrived"):
        assert part in text
    shown = cli.ok("show", digest)
    assert "identical: engine-0" in shown
    assert cli.ok("list").splitlines()[1].split()[-1] == "identical"


def test_an_engine_without_the_adapter_fails_the_command_by_name(withheld: TrainedRun, cli: CommandLine) -> None:
    digest = str(Registry(cli.home).add(withheld.last.checkpoint).digest)
    arguments = ("compare", digest, "--base", withheld.base_dir, "--served", served_to(withheld))
    done = cli(*arguments)
    assert done.code == 5
    (line,) = done.err.splitlines()
    assert line.startswith("aorlta-reg: engine-1: base-only: the adapter was not applied")
    done = cli(*arguments, "--json")
    assert (done.code, done.err) == (5, "")
    document = json.loads(done.out)
    assert {each["engine"]: each["verdict"] for each in document["engines"]} == {
        "engine-0": "identical",
        "engine-1": "base-only",
    }
    listed = json.loads(cli.ok("list", "--json"))["adapters"][0]
    assert (listed["verdict"], [each["verdict"] for each in listed["comparisons"]]) == (
        "base-only",
        ["identical", "base-only"],
    )


def test_add_with_a_base_finds_what_was_served_by_itself(run: TrainedRun, cli: CommandLine) -> None:
    done = cli("add", *(each.checkpoint for each in run.iterations), "--base", run.base_dir)
    assert done.code == 0, done.err
    digests = done.out.split()
    assert len(digests) == 3, "stdout has the digests and nothing else"
    for digest in digests:
        assert digest.startswith("sha256:")
        assert Registry(cli.home).show(digest).verdict is Verdict.IDENTICAL
    base = Registry(cli.home).show(digests[0]).exports[0].base
    assert base == str(run.base_dir.resolve())


def test_add_stores_the_adapter_whatever_its_engines_were_served(withheld: TrainedRun, cli: CommandLine) -> None:
    done = cli("add", withheld.last.checkpoint, "--base", withheld.base_dir)
    assert done.code == 5
    assert f"{withheld.last.checkpoint}: engine-1: base-only" in done.err
    assert cli.ok("path", done.out.strip())
    (row,) = (line.split() for line in cli.ok("list").splitlines()[1:])
    assert row[-1] == "base-only"
    document = json.loads(cli("add", withheld.last.checkpoint, "--base", withheld.base_dir, "--json").out)
    assert [each["verdict"] for each in document["adapters"]] == ["base-only"]
    assert len(records(cli.home)) == 1


def test_add_compares_with_what_it_is_given_instead(run: TrainedRun, withheld: TrainedRun, cli: CommandLine) -> None:
    sound = withheld.last.served["engine-0"]
    done = cli("add", withheld.last.checkpoint, "--base", withheld.base_dir, "--served", sound)
    assert (done.code, rows(cli.home)) == (0, [("engine-0", "identical")])
    wrong = cli("add", run.last.checkpoint, "--base", run.base_dir, "--served", run.iterations[0].served["engine-0"])
    assert wrong.code == 5
    assert "different" in wrong.err
    assert cli.ok("path", wrong.out.strip())


def test_evidence_that_is_not_there_is_found_out_before_anything_is_added(run: TrainedRun, registry: Registry) -> None:
    with pytest.raises(NotFound, match="missing"):
        registry.add(run.last.checkpoint, base=str(run.base_dir), served=[run.base_dir / "missing"])
    assert registry.newest(9) == []


def test_evidence_that_cannot_be_read_fails_but_the_digest_is_printed(
    run: TrainedRun, cli: CommandLine, tmp_path: Path
) -> None:
    damaged = tmp_path / "served.safetensors"
    damaged.write_bytes(b"no weights")
    done = cli("add", run.last.checkpoint, "--base", run.base_dir, "--served", damaged)
    assert done.code == 2
    assert "served.safetensors" in done.err
    assert cli.ok("path", done.out.strip())


def test_a_directory_without_weights_is_a_bases_name(run: TrainedRun, cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "Qwen").mkdir()
    done = cli("add", run.last.checkpoint, "--base", "Qwen", cwd=tmp_path)
    assert done.code == 0
    assert "Qwen" in cli.ok("show", done.out.strip())


def test_one_served_set_is_not_held_against_several_checkpoints(run: TrainedRun, cli: CommandLine) -> None:
    checkpoints = [each.checkpoint for each in run.iterations]
    done = cli("add", *checkpoints, "--base", run.base_dir, "--served", served_to(run, 1))
    assert (done.code, done.out) == (2, "")


def test_a_damaged_comparison_does_not_stand_before_its_adapter(run: TrainedRun, cli: CommandLine) -> None:
    digest = cli.ok("add", run.last.checkpoint, "--base", run.base_dir)
    (record,) = records(cli.home)
    record.chmod(0o644)
    record.write_bytes(record.read_bytes().replace(b"identical", b"base-only"))
    assert cli.ok("path", digest)
    shown = cli("show", digest)
    assert (shown.code, record.name in shown.err) == (0, True), "what is known is shown, and what is damaged is named"
    assert cli("verify", digest).code == 5


def test_a_failed_comparison_is_not_hidden_by_a_later_good_one(
    run: TrainedRun, withheld: TrainedRun, cli: CommandLine
) -> None:
    digest = cli.ok("add", withheld.last.checkpoint)
    for engine, code in (("engine-1", 5), ("engine-0", 0), ("engine-1", 5)):
        served = withheld.last.served[engine]
        assert cli("compare", digest, "--base", run.base_dir, "--served", served).code == code
        (row,) = (line.split() for line in cli.ok("list").splitlines()[1:])
        assert row[-1] == "base-only"


def test_an_engine_that_states_another_iteration_is_doubted(
    run: TrainedRun, registry: Registry, tmp_path: Path
) -> None:
    digest = str(registry.add(run.last.checkpoint).digest)
    tensors = load_file(run.last.served["engine-0"])
    facts = {name: {"sha256": tensor_sha256(tensor), "shape": list(tensor.shape)} for name, tensor in tensors.items()}
    listing = tmp_path / "served-weights.json"
    listing.write_text(json.dumps({"engine": "e", "iteration": 77, "dtype": "float16", "tensors": facts}))
    notes = registry.compare(digest, run.base_dir, [listing]).comparison.notes
    assert any("iteration 77" in note and "iteration 3" in note for note in notes)
    assert any("float16" in note and "bfloat16" in note for note in notes)


def test_an_unknown_device_is_refused(run: TrainedRun, cli: CommandLine) -> None:
    digest = cli.ok("add", run.last.checkpoint)
    done = cli("compare", digest, "--base", run.base_dir, "--served", served_to(run, 3), "--device", "tpu")
    assert done.code == 2
    assert "tpu" in done.err


@pytest.mark.parametrize("base", [(), ("--base", "org/base")])
def test_served_without_the_bases_weights_is_refused_before_anything_is_added(
    base: tuple[str, ...], run: TrainedRun, cli: CommandLine
) -> None:
    done = cli("add", run.last.checkpoint, *base, "--served", served_to(run, 3))
    assert (done.code, done.out) == (2, "")
    assert not cli.home.exists()


def test_a_plain_add_loads_no_torch_even_where_served_weights_lie_beside(run: TrainedRun, cli: CommandLine) -> None:
    shelf = Shelf(cli, run.last.checkpoint, "")
    arguments: list[str | Path] = ["add", run.last.checkpoint, "--base", "org/base"]
    assert "torch" not in loaded(shelf, arguments, cli.home.parent / "modules.json")
    with_base: list[str | Path] = ["add", run.last.checkpoint, "--base", run.base_dir]
    assert "torch" in loaded(shelf, with_base, cli.home.parent / "modules.json"), "or this test could not see it"
