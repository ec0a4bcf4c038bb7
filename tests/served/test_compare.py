"""Each verdict, reached on data that deserves it, from tensors and from digests; and what is told beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from registry.core.comparison import EngineResult, State, TensorResult, Verdict
from registry.core.errors import UnsupportedLora
from registry.served.recipes import RECIPES
from tests.support.merging import save_adapter
from tests.support.serving import (
    EMBEDDING,
    FORMULAS,
    HEAD,
    LAYERS,
    MODULES,
    NORM,
    Bench,
    K,
    Q,
    base_state,
    factors_of,
    fuse,
    merge_state,
    save_listing,
    save_state,
    updates_of,
)
from tests.wired.lora import round_stochastic
from tests.wired.trainer import TrainedRun, train

HELD = pytest.mark.parametrize("hold", [Bench.hold, Bench.hold_listing], ids=["tensors", "digests"])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An adapter on every linear layer."""
    return Bench(tmp_path, factors_of())


@pytest.fixture
def merged(bench: Bench) -> dict[str, torch.Tensor]:
    return merge_state(bench.base, bench.factors)


def named(result: EngineResult, state: State) -> list[str]:
    return sorted(tensor.name for tensor in result.tensors if tensor.state is state)


def only(result: EngineResult, state: State) -> TensorResult:
    (tensor,) = (tensor for tensor in result.tensors if tensor.state is state)
    return tensor


@HELD
def test_the_merge_is_identical(hold, bench: Bench, merged) -> None:
    result = hold(bench, merged)
    assert result.verdict is Verdict.IDENTICAL
    assert result.counts == {State.IDENTICAL: len(MODULES), State.UNTOUCHED: len(merged) - len(MODULES)}
    assert result.histogram == {}


@HELD
@pytest.mark.parametrize("recipe", RECIPES)
def test_auto_recognises_the_recipe_and_the_others_are_not_identical(recipe: str, hold, bench: Bench) -> None:
    assert set(FORMULAS) == set(RECIPES)
    served = merge_state(bench.base, bench.factors, recipe=recipe)
    assert hold(bench, served).verdict is Verdict.IDENTICAL
    file = bench.root / ("served.safetensors" if hold is Bench.hold else "served-weights.json")
    for named_recipe in (recipe, "auto"):
        found = bench.compare(file, recipe=named_recipe)
        assert (found.recipe, found.verdict) == (recipe, Verdict.IDENTICAL)
    for other in set(RECIPES) - {recipe}:
        found = bench.compare(file, recipe=other)
        assert (found.recipe, found.passed) == (other, False)
        assert State.DIFFERENT in found.engines[0].counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_types_of_base_are_identical_too(dtype: torch.dtype, tmp_path: Path) -> None:
    bench = Bench(tmp_path, factors_of(), base_state(dtype))
    assert bench.hold(merge_state(bench.base, bench.factors)).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_step_of_every_element_is_within_an_ulp_and_two_are_not(dtype: torch.dtype, tmp_path: Path) -> None:
    bench = Bench(tmp_path, factors_of(), base_state(dtype))
    merged = merge_state(bench.base, bench.factors)
    kind = torch.int32 if dtype is torch.float32 else torch.int16
    merged[f"{Q}.weight"].view(kind).add_(1)
    result = bench.hold(merged)
    assert (result.verdict, result.histogram) == (Verdict.WITHIN_ULP, {1: 1024})
    tensor = only(result, State.WITHIN_ULP)
    assert (tensor.name, tensor.differing, tensor.max_ulp) == (f"{Q}.weight", 1024, 1)
    merged[f"{Q}.weight"].view(kind)[-1, -1] += 1
    result = bench.hold(merged)
    assert (result.verdict, result.histogram) == (Verdict.DIFFERENT, {1: 1023, 2: 1})


def test_stochastic_rounding_is_within_an_ulp_and_nothing_more(bench: Bench) -> None:
    generator = torch.Generator().manual_seed(3)
    served = dict(bench.base)
    for module in MODULES:
        a, b = (bench.factors[f"{module}.lora_{factor}.weight"] for factor in "AB")
        served[f"{module}.weight"] = round_stochastic(bench.base[f"{module}.weight"].float() + 2 * (b @ a), generator)
    result = bench.hold(served)
    assert (result.verdict, result.counts[State.WITHIN_ULP]) == (Verdict.WITHIN_ULP, len(MODULES))
    assert result.histogram.keys() == {1}
    assert result.survival is not None
    assert result.survival.projected == pytest.approx(1, abs=0.01), "it is unbiased: the update arrives as a whole"


def test_digests_of_a_stochastic_rounding_prove_nothing_and_say_so(bench: Bench, merged) -> None:
    merged[f"{Q}.weight"].view(torch.int16)[0, 0] += 1
    found = bench.compare(save_listing(bench.root / "served-weights.json", merged, rounding="stochastic"))
    assert found.verdict is Verdict.DIFFERENT
    assert any("stochastic" in note and "vllm" in note for note in found.notes)
    assert found.engines[0].survival is None
    assert only(found.engines[0], State.DIFFERENT).max_ulp is None


@HELD
def test_the_unmodified_base_is_base_only_with_nothing_of_the_update_in_it(hold, bench: Bench) -> None:
    result = hold(bench, bench.base)
    assert result.verdict is Verdict.BASE_ONLY
    assert result.counts[State.BASE] == len(MODULES)
    assert result.survival is not None
    assert (result.survival.projected, result.survival.rounded_away) == (0, 1)


@HELD
def test_modules_without_the_adapter_make_it_partial_and_are_listed(hold, bench: Bench) -> None:
    result = hold(bench, merge_state(bench.base, bench.factors, without=[Q, K]))
    assert result.verdict is Verdict.PARTIAL
    assert named(result, State.BASE) == sorted([f"{Q}.weight", f"{K}.weight"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_partial_engine_is_partial_under_its_own_recipe(recipe: str, bench: Bench) -> None:
    served = merge_state(bench.base, bench.factors, recipe=recipe, without=[K])
    found = bench.compare(save_state(bench.root / "served.safetensors", served))
    assert (found.verdict, found.recipe) == (Verdict.PARTIAL, recipe)


def test_modules_that_the_base_has_not_make_it_partial(tmp_path: Path) -> None:
    """vllm#34186, where only some names match."""
    strangers = {
        name.replace("layers.1", "layers.9"): t for name, t in factors_of([f"{LAYERS[1]}.mlp.up_proj"]).items()
    }
    bench = Bench(tmp_path, {**factors_of([Q]), **strangers})
    result = bench.hold(merge_state(bench.base, factors_of([Q])))
    assert result.verdict is Verdict.PARTIAL
    assert named(result, State.UNMATCHED) == ["model.layers.9.mlp.up_proj"]
    assert bench.hold(bench.base).verdict is Verdict.BASE_ONLY


def test_an_adapter_of_which_no_module_is_in_the_base_is_refused(tmp_path: Path) -> None:
    """vllm#34186: the engine would serve the base, silently."""
    elsewhere = {name.replace("model.layers", "model.blocks"): tensor for name, tensor in factors_of().items()}
    bench = Bench(tmp_path, elsewhere)
    with pytest.raises(UnsupportedLora, match=r"model\.blocks.*model\.layers"):
        bench.hold(bench.base)


@HELD
def test_another_adapter_is_different(hold, bench: Bench) -> None:
    assert hold(bench, merge_state(bench.base, factors_of(seed=7))).verdict is Verdict.DIFFERENT


@HELD
@pytest.mark.parametrize("scale", [4.0, 1.0, -2.0])
def test_another_scale_is_different(scale: float, hold, bench: Bench) -> None:
    result = hold(bench, merge_state(bench.base, bench.factors, scale=scale))
    assert result.verdict is Verdict.DIFFERENT
    if hold is Bench.hold:
        assert result.survival is not None
        assert result.survival.projected == pytest.approx(scale / 2, rel=0.02)


@HELD
@pytest.mark.parametrize("name", [NORM, EMBEDDING, HEAD])
def test_a_tensor_that_the_adapter_does_not_touch_must_be_the_base(name: str, hold, bench: Bench, merged) -> None:
    merged[name].view(torch.int16).view(-1)[-1] ^= 1
    result = hold(bench, merged)
    assert result.verdict is Verdict.DIFFERENT
    assert only(result, State.ALTERED).name == name


def test_another_type_is_different_even_where_the_values_are_equal(bench: Bench, merged) -> None:
    assert bench.hold({name: tensor.float() for name, tensor in merged.items()}).verdict is Verdict.DIFFERENT
    merged[NORM] = merged[NORM].float()
    assert only(bench.hold(merged), State.ALTERED).name == NORM


@HELD
@pytest.mark.parametrize("change", ["absent", "shape"])
def test_a_targeted_tensor_that_was_not_served_makes_it_incomplete(change: str, hold, bench: Bench, merged) -> None:
    tensor = merged.pop(f"{Q}.weight")
    if change == "shape":
        merged[f"{Q}.weight"] = tensor[:-1].contiguous()
    result = hold(bench, merged)
    assert result.verdict is Verdict.INCOMPLETE
    assert named(result, State.MISSING) == [f"{Q}.weight"]


def test_a_construct_that_no_merge_follows_makes_it_incomplete_and_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, factors_of(), trainable_token_indices=[1, 2])
    found = bench.compare(save_state(tmp_path / "served.safetensors", merge_state(bench.base, bench.factors)))
    assert found.verdict is Verdict.INCOMPLETE
    assert "trainable_token_indices" in only(found.engines[0], State.UNSUPPORTED).name
    assert any("trainable_token_indices" in note for note in found.notes)


@HELD
def test_an_adapter_of_zeros_is_vacuous_and_passes(hold, tmp_path: Path) -> None:
    zero = {name: tensor * ("lora_A" in name) for name, tensor in factors_of().items()}
    bench = Bench(tmp_path, {name: tensor.abs() for name, tensor in zero.items()})
    result = hold(bench, bench.base)
    assert (result.verdict, result.survival) == (Verdict.VACUOUS, None)
    found = bench.compare(save_state(tmp_path / "served.safetensors", bench.base))
    assert (found.all_b_zero, found.passed) == (True, True)
    found = bench.compare(save_state(tmp_path / "served.safetensors", merge_state(bench.base, factors_of())))
    assert (found.verdict, found.passed) == (Verdict.DIFFERENT, False)


@HELD
def test_an_update_that_is_rounded_away_whole_is_vacuous_and_fails(hold, tmp_path: Path) -> None:
    bench = Bench(tmp_path, factors_of(size=1e-12))
    merged = merge_state(bench.base, bench.factors)
    result = hold(bench, merged)
    assert result.verdict is Verdict.VACUOUS
    assert result.survival is not None
    assert (result.survival.projected, result.survival.rounded_away) == (0, 1)
    found = bench.compare(save_state(tmp_path / "served.safetensors", merged))
    assert (found.all_b_zero, found.passed) == (False, False)


@pytest.mark.parametrize("size", [1e-4, 1e-3, 1e-2])
def test_the_surviving_fraction_of_a_tiny_update_is_the_direct_one(size: float, tmp_path: Path) -> None:
    """NeMo-RL#3696: a bf16 base takes little of a small update, or little of it at the right size."""
    bench = Bench(tmp_path, factors_of(size=size))
    merged, updates = merge_state(bench.base, bench.factors), updates_of(bench.factors)
    moved = sum(((merged[n].double() - bench.base[n].double()) * update).sum() for n, update in updates.items())
    energy = sum(update.square().sum() for update in updates.values())
    kept = sum(int((merged[name] == bench.base[name]).sum()) for name in updates)
    result = bench.hold(merged)
    assert result.survival is not None
    assert result.survival.projected == pytest.approx(float(moved / energy), rel=1e-4)
    assert result.survival.rounded_away == kept / sum(update.numel() for update in updates.values())
    assert bench.hold_listing(merged).survival == result.survival
    assert (result.survival.rounded_away > 0.4) == (size == 1e-4)


@pytest.mark.parametrize("recipe", RECIPES)
def test_survival_is_measured_on_the_exact_update_whatever_the_recipe(recipe: str, tmp_path: Path) -> None:
    """Every element of A loses the same part of itself where bf16 rounds it."""
    factors = {name: torch.full_like(t, 1.003) if "lora_A" in name else t for name, t in factors_of([Q]).items()}
    bench = Bench(tmp_path, factors)
    name, update = f"{Q}.weight", updates_of(factors)[f"{Q}.weight"]
    merged = merge_state(bench.base, factors, recipe=recipe)
    moved = ((merged[name].double() - bench.base[name].double()) * update).sum()
    survival = bench.hold(merged, recipe=recipe).survival
    assert survival is not None
    assert survival.projected == pytest.approx(float(moved / update.square().sum()), rel=1e-4)


def test_one_tensor_that_is_the_same_under_two_recipes_does_not_mislead(tmp_path: Path) -> None:
    factors = factors_of()
    factors |= {name: tensor.bfloat16().float() for name, tensor in factors.items() if K in name}
    factors |= {name: torch.ones_like(tensor) for name, tensor in factors.items() if K in name and "lora_A" in name}
    bench = Bench(tmp_path, factors)
    served = merge_state(bench.base, factors, recipe="prerounded-fp32")
    assert torch.equal(served[f"{K}.weight"], merge_state(bench.base, factors)[f"{K}.weight"])
    found = bench.compare(save_state(tmp_path / "served.safetensors", served))
    assert (found.recipe, found.verdict) == ("prerounded-fp32", Verdict.IDENTICAL)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_engine_that_was_served_what_is_no_number_is_different_and_the_result_can_be_kept(
    value: float, bench: Bench, merged
) -> None:
    merged[f"{Q}.weight"][3, 3] = value
    result = bench.hold(merged)
    tensor = only(result, State.DIFFERENT)
    assert (result.verdict, result.survival, tensor.max_abs, tensor.arrived) == (Verdict.DIFFERENT, None, None, None)
    assert (tensor.differing, sum(result.histogram.values())) == (1, 1)


def test_tensors_and_digests_have_one_identity(bench: Bench, merged) -> None:
    for served in (merged, bench.base, merge_state(bench.base, factors_of(seed=5)), fuse(merged)):
        seen, listed = bench.hold(served), bench.hold_listing(served)
        assert seen.served_digest == listed.served_digest
        assert (seen.verdict, seen.counts) == (listed.verdict, listed.counts)


def test_the_identity_is_of_the_tensors_and_of_all_that_were_compared(bench: Bench, merged) -> None:
    first = bench.hold(merged).served_digest
    half = {name: tensor for name, tensor in merged.items() if "layers.1" in name}
    rest = {name: tensor for name, tensor in merged.items() if "layers.1" not in name}
    save_state(bench.root / "shards" / "a.safetensors", half)
    save_state(bench.root / "shards" / "b.safetensors", rest)
    assert bench.compare(bench.root / "shards").engines[0].served_digest == first
    merged[NORM][0] += 1
    assert bench.hold(merged).served_digest != first


def test_the_base_digest_changes_with_the_base(bench: Bench, merged, tmp_path: Path) -> None:
    file = save_state(bench.root / "served.safetensors", merged)
    altered = base_state()
    altered[NORM][0] += 1
    other = Bench(tmp_path / "other", bench.factors, altered)
    assert bench.compare(file).base_digest == bench.compare(file).base_digest != other.compare(file).base_digest


@HELD
@pytest.mark.parametrize("prefix", ["", "model.language_model.", "language_model."])
def test_fused_and_renamed_tensors_are_taken_apart(prefix: str, hold, bench: Bench, merged) -> None:
    for served, verdict in ((merged, Verdict.IDENTICAL), (bench.base, Verdict.BASE_ONLY)):
        renamed = {
            prefix + name.removeprefix("model.") if name.startswith("model.") and prefix else name: tensor
            for name, tensor in fuse(served).items()
        }
        result = hold(bench, renamed)
        assert result.verdict is verdict
        assert sum(result.counts.values()) == len(bench.base)


def test_one_part_of_a_fused_tensor_that_lacks_the_adapter_is_named(bench: Bench) -> None:
    result = bench.hold(fuse(merge_state(bench.base, bench.factors, without=[K])))
    assert result.verdict is Verdict.PARTIAL
    assert only(result, State.BASE).name == f"{K}.weight (in {K.replace('k_proj', 'qkv_proj')}.weight)"


def test_fused_tensors_of_which_only_some_parts_are_targeted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, factors_of([Q]))
    merged = merge_state(bench.base, bench.factors)
    for hold in (Bench.hold, Bench.hold_listing):
        assert hold(bench, fuse(merged)).verdict is Verdict.IDENTICAL
    merged[f"{K}.weight"][0, 0] += 1
    assert only(bench.hold(fuse(merged)), State.ALTERED).name.startswith(f"{K}.weight")


def test_fused_parts_in_another_order_are_not_identical(bench: Bench, merged) -> None:
    fused = fuse(merged)
    name = f"{LAYERS[0]}.mlp.gate_up_proj.weight"
    fused[name] = torch.cat(fused[name].chunk(2)[::-1])
    assert bench.hold(fused).verdict is Verdict.DIFFERENT


def test_each_engine_has_a_verdict_of_its_own_and_the_gravest_counts(bench: Bench, merged) -> None:
    save_state(bench.root / "served" / "engine-0.safetensors", merged)
    save_state(bench.root / "served" / "engine-1.safetensors", bench.base)
    save_listing(bench.root / "served" / "served-weights.json", merged, "engine-2")
    found = bench.compare(bench.root / "served")
    assert {result.engine: result.verdict for result in found.engines} == {
        "engine-0": Verdict.IDENTICAL,
        "engine-1": Verdict.BASE_ONLY,
        "engine-2": Verdict.IDENTICAL,
    }
    assert (found.verdict, found.passed) == (Verdict.BASE_ONLY, False)
    digests = {result.engine: result.served_digest for result in found.engines}
    assert digests["engine-0"] == digests["engine-2"] != digests["engine-1"]


def test_the_recipe_is_recognised_by_the_engine_that_has_the_adapter(bench: Bench) -> None:
    base = save_state(bench.root / "a.safetensors", bench.base)
    merged = merge_state(bench.base, bench.factors, recipe="low-precision")
    found = bench.compare(base, save_state(bench.root / "b.safetensors", merged))
    assert found.recipe == "low-precision"
    assert [result.verdict for result in found.engines] == [Verdict.BASE_ONLY, Verdict.IDENTICAL]


def test_a_hundred_comparisons_give_one_answer_and_leave_base_and_served_alone(bench: Bench, merged) -> None:
    """trl#6688."""
    file = save_state(bench.root / "served.safetensors", merged)
    before = [(bench.root / "base" / "model.safetensors").read_bytes(), file.read_bytes()]
    first = bench.compare(file)
    assert all(bench.compare(file, recipe="fp32", workers=1 + n % 2) == first for n in range(99))
    assert [(bench.root / "base" / "model.safetensors").read_bytes(), file.read_bytes()] == before


def test_the_number_of_workers_changes_nothing(bench: Bench) -> None:
    served = merge_state(bench.base, factors_of(seed=4), recipe="delta-rounded", without=[Q])
    file = save_state(bench.root / "served.safetensors", served)
    one, two, four = (bench.compare(file, workers=workers) for workers in (1, 2, 4))
    assert one == two == four
    assert one.conditions == {"torch": torch.__version__, "device": "cpu", "threads": 1}


@pytest.mark.parametrize("rows", [512, 513, 519, 1030])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_tensor_of_many_blocks_has_the_bits_of_one_whole_product(
    dtype: torch.dtype, rows: int, tmp_path: Path
) -> None:
    """512 rows are a block: a shorter last one must not change the order of its additions unseen."""
    torch.manual_seed(0)
    base = {"model.big.weight": (torch.randn(rows, 512) * 0.02).to(dtype)}
    factors = {"model.big.lora_A.weight": torch.randn(4, 512), "model.big.lora_B.weight": torch.randn(rows, 4) * 0.01}
    bench = Bench(tmp_path, factors, base)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        merged = merge_state(base, factors)
    finally:
        torch.set_num_threads(threads)
    for hold in (Bench.hold, Bench.hold_listing):
        assert hold(bench, merged).verdict is Verdict.IDENTICAL


def test_progress_adds_up_to_all_of_the_base_that_was_compared(bench: Bench, merged) -> None:
    steps: list[tuple[int, int]] = []
    file = save_state(bench.root / "served.safetensors", merged)
    bench.compare(file, progress=lambda done, total: steps.append((done, total)))
    size = sum(tensor.nbytes for tensor in bench.base.values())
    assert sum(done for done, _ in steps) == size
    assert {total for _, total in steps} == {size}


@HELD
def test_the_added_head_of_a_tied_base_is_compared_with_what_it_starts_from(hold, tmp_path: Path) -> None:
    """The embedding changes, the head does not: an engine must have been given both."""
    base = base_state()
    del base[HEAD]
    new = base[EMBEDDING] * 2
    bench = Bench(tmp_path, {**factors_of([Q]), "model.embed_tokens.weight": new.float()}, base)
    (tmp_path / "base" / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    merged = merge_state(base, factors_of([Q])) | {EMBEDDING: new}
    assert hold(bench, merged | {HEAD: base[EMBEDDING]}).verdict is Verdict.IDENTICAL
    result = hold(bench, merged | {HEAD: new.clone()})
    assert (result.verdict, only(result, State.ALTERED).name) == (Verdict.DIFFERENT, HEAD)


def test_tensors_without_elements_and_scalars_are_compared_too(tmp_path: Path) -> None:
    base = base_state() | {"a.empty": torch.zeros(0, 4), "a.scalar": torch.tensor(2.0), "a.flag": torch.tensor([True])}
    bench = Bench(tmp_path, factors_of(), base)
    merged = merge_state(base, bench.factors)
    for hold in (Bench.hold, Bench.hold_listing):
        assert hold(bench, merged).verdict is Verdict.IDENTICAL
    merged["a.scalar"] += 1
    assert only(bench.hold(merged), State.ALTERED).name == "a.scalar"


def test_tensors_of_no_name_in_the_base_are_counted_in_a_note(bench: Bench, merged) -> None:
    file = save_state(bench.root / "served.safetensors", {**merged, "visual.patch.weight": torch.ones(2, 2)})
    found = bench.compare(file)
    assert found.verdict is Verdict.IDENTICAL
    assert any("1 tensors" in note and "visual.patch.weight" in note for note in found.notes)


def test_notes_stay_short_whatever_the_names_and_however_many(bench: Bench, merged) -> None:
    long = "x" * 100_000
    file = save_state(bench.root / "served.safetensors", {**merged, long: torch.ones(2, 2)})
    stranger = {f"base_model.model.{number}.{long}.bias": torch.ones(1) for number in range(60)}
    save_adapter(bench.root / "adapter", {f"base_model.model.{k}": v for k, v in bench.factors.items()} | stranger)
    found = bench.compare(file)
    assert len(found.notes) < 60
    assert max(map(len, found.notes)) < 500
    assert "nor are 10 more" in found.notes
    assert any(note.startswith("served: 1 tensors are not of the base's") and "xxx" in note for note in found.notes)


def test_an_engine_of_quite_another_model_is_refused_by_name(bench: Bench) -> None:
    file = save_state(bench.root / "elsewhere.safetensors", {"visual.patch.weight": torch.ones(2, 2)})
    with pytest.raises(UnsupportedLora, match=r"elsewhere.*visual\.patch\.weight"):
        bench.compare(file)


@pytest.fixture(scope="module")
def stochastic(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    root = tmp_path_factory.mktemp("stochastic")
    return train(root / "run", root / "base", iterations=1, stochastic_rounding=True)


@pytest.mark.slow
def test_a_trainer_that_rounds_stochastically_is_within_an_ulp(stochastic: TrainedRun, tmp_path: Path) -> None:
    bench = Bench(tmp_path, stochastic.last.latent)
    (tmp_path / "base").rename(tmp_path / "unused")
    (tmp_path / "base").symlink_to(stochastic.base_dir)
    found = bench.compare(stochastic.last.served["engine-0"])
    assert (found.verdict, found.passed) == (Verdict.WITHIN_ULP, True)
    assert found.engines[0].histogram.keys() == {1}
