"""A merge is peft's, bit for bit, under the recipe that peft's arithmetic is; it keeps the function where peft's own
merge does not (tied weights); and it publishes a whole model or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.core.errors import IntegrityError, MalformedFile, OutputExists, Refused, UnsupportedLora
from registry.operations.merge import MERGE_MANIFEST, Merged
from registry.served.recipes import RECIPES
from tests.support.merging import (
    differing,
    factors,
    gpt2,
    llama,
    load_adapted,
    load_model,
    logits,
    make_adapter,
    make_base,
    mixtral,
    peft_merge,
    qwen3,
    qwen3_5,
    save_adapter,
    store_adapter,
    tensors,
)
from tests.support.process import COMMAND, CommandLine
from tests.support.trees import contents, flip

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ATTENTION = ["q_proj", "v_proj", "o_proj"]
LINEAR: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "llama": (llama, {"target_modules": "all-linear"}),
    "llama, head": (llama, {"target_modules": [*ATTENTION, "lm_head"]}),
    "qwen3, patterns": (
        qwen3,
        {
            "target_modules": [*ATTENTION, "down_proj"],
            "rank_pattern": {"layers.1.self_attn.v_proj": 2, "self_attn.v_proj": 6, "q_proj": 8},
            "alpha_pattern": {"o_proj": 3, r".*\.0\.mlp\.down_proj": 5},
        },
    ),
    "qwen3, rslora": (qwen3, {"target_modules": ATTENTION, "use_rslora": True, "r": 6}),
    "qwen3.5": (qwen3_5, {"target_modules": "all-linear"}),
    "mixtral": (mixtral, {"target_modules": ATTENTION}),
    "gpt2": (gpt2, {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "gpt2, biases": (gpt2, {"target_modules": ["c_attn", "c_proj"], "bias": "lora_only"}),
    "biases": (lambda: llama(attention_bias=True), {"target_modules": ["q_proj"], "bias": "all"}),
    "lora biases": (lambda: llama(attention_bias=True), {"target_modules": ["q_proj"], "lora_bias": True}),
    "whole modules": (llama, {"target_modules": ATTENTION, "modules_to_save": ["lm_head", "norm"]}),
}
DORA: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "llama": (llama, {"target_modules": ATTENTION, "use_dora": True}),
    "llama, embedding": (llama, {"target_modules": [*ATTENTION, "embed_tokens"], "use_dora": True}),
    "gpt2": (gpt2, {"target_modules": ["c_attn", "c_proj", "c_fc"], "use_dora": True, "use_rslora": True}),
}


class Bench:
    """A base, an adapter on it in a registry, and the merges of the two."""

    def __init__(self, root: Path, base: Path, adapter: Path) -> None:
        self.root, self.base, self.adapter, self.home = root, base, adapter, root / "home"
        self.digest = store_adapter(self.home, adapter)

    def merge(self, name: str = "merged", recipe: str = "fp32") -> tuple[Path, Merged]:
        """Merge into a new directory; it, and what the operation says."""
        merged = Registry(self.home).merge(str(self.digest), self.base, self.root / name, recipe)
        return self.root / name, merged

    def peft(self, *, safe: bool = False) -> Path:
        """peft's own merge."""
        return peft_merge(self.root / f"peft-{safe}", self.base, self.adapter, safe=safe)


def bench(root: Path, config: Any, *, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> Bench:
    base = make_base(root / "base", config, dtype=dtype)
    return Bench(root, base, make_adapter(root / "adapter", base, **settings))


def synthetic(root: Path, state: dict[str, torch.Tensor], lora: dict[str, torch.Tensor], **config: Any) -> Bench:
    """A base of bare tensors, without a model around them."""
    (root / "base").mkdir()
    save_file(state, root / "base/model.safetensors", metadata={"format": "pt"})
    return Bench(root, root / "base", save_adapter(root / "adapter", lora, **config))


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("case", LINEAR)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_pefts_merge_is_fp32_and_its_safe_merge_is_delta_rounded(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    config, settings = LINEAR[case]
    made = bench(tmp_path, config(), dtype=dtype, **settings)
    merged, plain = made.merge()[0], made.peft()
    assert differing(tensors(merged), tensors(plain)) == {}
    assert torch.equal(logits(load_model(merged)), logits(load_model(plain)))
    assert differing(tensors(made.merge("rounded", "delta-rounded")[0]), tensors(made.peft(safe=True))) == {}


@pytest.mark.parametrize("case", DORA)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_both_of_pefts_dora_merges_are_fp32(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    config, settings = DORA[case]
    made = bench(tmp_path, config(), dtype=dtype, **settings)
    merged = tensors(made.merge()[0])
    assert differing(merged, tensors(made.peft())) == {}
    assert differing(merged, tensors(made.peft(safe=True))) == {}
    assert differing(merged, tensors(made.merge("rounded", "delta-rounded")[0])) == {}


def test_both_of_pefts_embedding_merges_are_delta_rounded(tmp_path: Path) -> None:
    made = bench(tmp_path, llama(), target_modules=[*ATTENTION, "embed_tokens"])
    rounded, plain = tensors(made.merge("rounded", "delta-rounded")[0]), tensors(made.peft())
    assert torch.equal(rounded[EMBEDDING], plain[EMBEDDING])
    assert differing(rounded, tensors(made.peft(safe=True))) == {}
    once = differing(tensors(made.merge()[0]), plain)
    assert list(once) == [EMBEDDING]  # all else is fp32; here one rounding instead of two shows in 807 of 3072 elements
    assert 0.15 < once[EMBEDDING] / plain[EMBEDDING].numel() < 0.4


def test_the_wrong_recipe_shows_in_every_merged_tensor_and_nowhere_else(tmp_path: Path) -> None:
    made = bench(tmp_path, llama(), target_modules=ATTENTION)
    base, merged = tensors(made.base), tensors(made.merge()[0])
    targeted = {name for name in merged if any(module in name for module in ATTENTION)}
    assert set(differing(merged, base)) == targeted
    for recipe in RECIPES[1:]:
        counts = differing(tensors(made.merge(recipe, recipe)[0]), merged)
        assert set(counts) == targeted
        assert all(0.1 < count / merged[name].numel() < 0.6 for name, count in counts.items()), counts


class TestTied:
    """peft's merge writes into the shared matrix and so changes both ends of the model; the adapter changes one."""

    @pytest.mark.parametrize(
        ("config", "settings"),
        [
            (llama, {"target_modules": ["q_proj", "lm_head"]}),
            (llama, {"target_modules": ["q_proj", "embed_tokens"]}),
            (llama, {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
            (llama, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
            (gpt2, {"target_modules": ["c_attn", "wte"]}),
        ],
    )
    def test_merged_model_computes_what_base_and_adapter_compute(
        self, tmp_path: Path, config: Callable[..., Any], settings: Any
    ) -> None:
        made = bench(tmp_path, config(tie_word_embeddings=True), dtype=torch.float32, **settings)
        merged, said = made.merge()
        expected = logits(load_adapted(made.base, made.adapter))
        torch.testing.assert_close(logits(load_model(merged)), expected, rtol=0, atol=1e-5)
        assert len(said.manifest["untied"]) == 2
        assert json.loads((merged / "config.json").read_text())["tie_word_embeddings"] is False
        if "modules_to_save" not in settings:
            assert (logits(load_model(made.peft())) - expected).abs().max() > 1

    def test_the_other_name_keeps_its_bits(self, tmp_path: Path) -> None:
        made = bench(tmp_path, llama(tie_word_embeddings=True), target_modules=["q_proj", "lm_head"])
        merged, said = made.merge()
        base, found = tensors(made.base), tensors(merged)
        assert HEAD not in base
        assert torch.equal(found[EMBEDDING], base[EMBEDDING])
        assert not torch.equal(found[HEAD], base[EMBEDDING])
        assert said.manifest["untied"] == [EMBEDDING, HEAD]
        assert said.manifest["tensors"] == {"changed": 3, "copied": len(base) - 2}

    def test_a_base_that_leaves_the_flag_out_is_tied_too(self, tmp_path: Path) -> None:
        made = bench(tmp_path, gpt2(), dtype=torch.float32, target_modules=["c_attn", "wte"])
        config = json.loads((made.base / "config.json").read_text())
        config.pop("tie_word_embeddings", None)
        (made.base / "config.json").write_text(json.dumps(config))
        merged, said = made.merge()
        expected = logits(load_adapted(made.base, made.adapter))
        torch.testing.assert_close(logits(load_model(merged)), expected, rtol=0, atol=1e-5)
        assert said.manifest["untied"] == ["transformer.wte.weight", HEAD]

    def test_an_embedding_that_the_index_does_not_list_is_refused(self, tmp_path: Path) -> None:
        base = make_base(tmp_path / "base", llama(tie_word_embeddings=True), max_shard_size="20KB")
        made = Bench(tmp_path, base, make_adapter(tmp_path / "adapter", base, target_modules=["lm_head"]))
        index = json.loads((base / "model.safetensors.index.json").read_text())
        shards = sorted(set(index["weight_map"].values()))
        held = {name: shard for shard in shards for name in load_file(base / shard)}
        assert held == index["weight_map"]
        state = load_file(base / held[EMBEDDING]) | {"other": torch.ones(1)}
        save_file(state, base / held[EMBEDDING])
        index["weight_map"] = {**held, "other": held[EMBEDDING]}
        del index["weight_map"][EMBEDDING]
        (base / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(MalformedFile, match=r"embed_tokens\.weight: the index does not list"):
            made.merge()

    def test_nothing_is_untied_where_neither_is_touched(self, tmp_path: Path) -> None:
        made = bench(tmp_path, llama(tie_word_embeddings=True), target_modules=["q_proj"])
        merged, said = made.merge()
        assert said.manifest["untied"] is None
        assert (merged / "config.json").read_bytes() == (made.base / "config.json").read_bytes()
        assert differing(tensors(merged), tensors(made.peft())) == {}

    def test_new_tensor_is_in_the_index_of_a_sharded_model(self, tmp_path: Path) -> None:
        base = make_base(tmp_path / "base", llama(tie_word_embeddings=True), max_shard_size="20KB")
        made = Bench(tmp_path, base, make_adapter(tmp_path / "adapter", base, target_modules=["q_proj", "lm_head"]))
        merged, _ = made.merge()
        before = json.loads((base / "model.safetensors.index.json").read_text())
        after = json.loads((merged / "model.safetensors.index.json").read_text())
        assert after["weight_map"] == before["weight_map"] | {HEAD: before["weight_map"][EMBEDDING]}
        assert after["metadata"]["total_size"] == before["metadata"]["total_size"] + 64 * 48 * 2
        assert (tensors(merged)[HEAD] == load_model(merged).lm_head.weight).all()


def test_a_sharded_base_gives_the_same_tensors_and_keeps_its_shards(tmp_path: Path) -> None:
    single = bench(tmp_path, qwen3(), target_modules="all-linear")
    shards = make_base(tmp_path / "shards", qwen3(), max_shard_size="30KB")
    sharded = Bench(tmp_path, shards, single.adapter)
    merged, said = sharded.merge("merged-shards")
    assert differing(tensors(merged), tensors(single.merge()[0])) == {}
    assert len(said.manifest["base"]["files"]) > 2
    assert {name for name in contents(merged) if "safetensors" in name} == {
        name for name in contents(shards) if "safetensors" in name
    }
    assert contents(merged)["model.safetensors.index.json"] == contents(shards)["model.safetensors.index.json"]
    assert torch.equal(logits(load_model(merged)), logits(load_model(tmp_path / "merged")))


def test_header_metadata_and_all_other_tensors_are_the_bases_bytes(tmp_path: Path) -> None:
    state = {"z": torch.arange(5), "m.weight": torch.randn(24, 16).bfloat16(), "a": torch.randn(3, 2).half()}
    made = synthetic(tmp_path, state, factors("m"))
    before = (made.base / "model.safetensors").read_bytes()
    after = (made.merge()[0] / "model.safetensors").read_bytes()
    assert len(before) == len(after)
    header = 8 + int.from_bytes(before[:8], "little")
    assert before[:header] == after[:header]
    found = load_file(tmp_path / "merged/model.safetensors")
    assert all(torch.equal(found[name], state[name]) for name in ("z", "a"))
    with safe_open(tmp_path / "merged/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_side_files_come_along_and_other_weights_do_not(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"))
    kept = {"config.json": b"{}", "generation_config.json": b"x", "tokenizer.json": b"{}", "LICENSE": b"mine"}
    dropped = ["pytorch_model.bin", "optimizer.pt", "rng.pth", "x.gguf", "adapter_config.json", ".gitattributes"]
    dropped += ["pytorch_model.bin.index.json", MERGE_MANIFEST]
    for name, data in (kept | dict.fromkeys(dropped, b"{}")).items():
        (made.base / name).write_bytes(data)
    (made.base / "original").mkdir()
    (tmp_path / "elsewhere").write_bytes(b"linked")
    (made.base / "vocab.txt").symlink_to(tmp_path / "elsewhere")
    merged, said = made.merge()
    found = contents(merged)
    assert {name: found[name] for name in kept} == kept
    assert set(found) == {*kept, "vocab.txt", "model.safetensors", MERGE_MANIFEST}
    assert not (merged / "vocab.txt").is_symlink()
    assert said.manifest["files"] == {name: sha256(merged / name) for name in found if name != MERGE_MANIFEST}


def test_names_that_are_not_utf_8_are_kept_and_escaped_in_the_manifest(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"))
    side, weights = os.fsdecode(b"r\xe9sum\xe9.txt"), os.fsdecode(b"\xff.safetensors")
    (made.base / side).write_bytes(b"mine")
    (made.base / "model.safetensors").rename(made.base / weights)
    merged, _ = made.merge()
    assert (merged / side).read_bytes() == b"mine"
    manifest = json.loads((merged / MERGE_MANIFEST).read_text())
    assert set(manifest["files"]) == {r"r\udce9sum\udce9.txt", r"\udcff.safetensors"}
    assert manifest["files"][r"\udcff.safetensors"] == sha256(merged / weights)
    assert set(manifest["base"]["files"]) == {r"\udcff.safetensors"}


def test_a_base_that_is_one_file_gives_that_file(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"))
    (made.base / "config.json").write_text("{}")
    made.base = made.base / "model.safetensors"
    assert set(contents(made.merge()[0])) == {"model.safetensors", MERGE_MANIFEST}


def test_the_manifest_says_what_was_made_of_what_and_under_which_conditions(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16), "n": torch.zeros(2)}, factors("m"))
    merged, said = made.merge(recipe="prerounded-fp32")
    manifest = json.loads((merged / MERGE_MANIFEST).read_text())
    assert manifest == said.manifest
    assert manifest["adapter"]["digest"] == made.digest.hex
    assert manifest["base"] == {
        "path": str(made.base),
        "files": {"model.safetensors": sha256(made.base / "model.safetensors")},
    }
    assert manifest["recipe"] == "prerounded-fp32"
    assert manifest["tensors"] == {"changed": 1, "copied": 1}
    assert manifest["conditions"] == {"torch": torch.__version__, "device": "cpu", "threads": 1}


def test_merging_twice_gives_the_same_bytes_and_torch_its_threads_back(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(900, 800).bfloat16()}, factors("m", rows=900, columns=800))
    threads = torch.get_num_threads()
    first, second = made.merge("one")[0], made.merge("two")[0]
    assert sha256(first / "model.safetensors") == sha256(second / "model.safetensors")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"target_parameters": ["m.experts"]}, "target_parameters"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"target_modules": ["k_proj"]}, "does not select m"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, settings: Any, named: str) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"), **settings)
    with pytest.raises(UnsupportedLora, match=named):
        made.merge()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "home"]


def test_a_fused_mixture_of_experts_is_refused_by_name(tmp_path: Path) -> None:
    made = bench(tmp_path, mixtral(), target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"])
    with pytest.raises(UnsupportedLora, match=r"target_parameters: .*mlp\.experts"):
        made.merge()


def test_single_experts_of_a_fused_base_are_refused_by_name(tmp_path: Path) -> None:
    """transformers#42491"""
    state = {"mlp.experts.gate_up_proj": torch.randn(4, 48, 16), "m.weight": torch.randn(24, 16)}
    made = synthetic(tmp_path, state, factors("m") | factors("mlp.experts.3.up_proj"))
    with pytest.raises(UnsupportedLora, match=r"found mlp\.experts\.3\.up_proj: a LoRA on one expert"):
        made.merge()


def test_a_module_that_the_base_has_not_is_refused_by_name(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m") | factors("other"))
    with pytest.raises(UnsupportedLora, match=r"found other$"):
        made.merge()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_result_that_is_not_finite_is_refused_and_stays_partial(tmp_path: Path, value: float) -> None:
    lora = factors("m")
    lora["base_model.model.m.lora_A.weight"][2, 3] = value
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, lora)
    with pytest.raises(Refused, match=r"m\.weight: the merged weight has infinite or NaN"):
        made.merge()
    assert not (tmp_path / "merged").exists()
    assert (tmp_path / "merged.partial").is_dir()


def test_an_overflow_of_half_precision_is_refused(tmp_path: Path) -> None:
    state = {"m.weight": torch.full((24, 16), 6e4, dtype=torch.half)}
    ones = {name: torch.full_like(tensor, 100) for name, tensor in factors("m").items()}
    with pytest.raises(Refused, match="infinite or NaN"):
        synthetic(tmp_path, state, ones).merge()


def test_an_output_that_exists_is_refused_and_untouched(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"))
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged/mine").write_text("mine")
    with pytest.raises(OutputExists):
        made.merge()
    assert contents(tmp_path / "merged") == {"mine": b"mine"}


def test_an_output_inside_the_registry_is_refused(tmp_path: Path) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"))
    with pytest.raises(Refused, match="inside the registry"):
        made.merge("home/merged")


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_corrupt_stored_adapter_is_never_merged(tmp_path: Path, name: str) -> None:
    made = synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"))
    file = made.home / "adapters" / made.digest.hex[:2] / made.digest.hex / name
    file.chmod(0o644)
    flip(file)
    with pytest.raises(IntegrityError):
        made.merge()
    assert not (tmp_path / "merged").exists()


class TestCommand:
    """The same from the command line."""

    @pytest.fixture
    def made(self, tmp_path: Path) -> Bench:
        return synthetic(tmp_path, {"m.weight": torch.randn(24, 16)}, factors("m"))

    def test_prints_the_directory(self, made: Bench, cli: CommandLine, tmp_path: Path) -> None:
        done = cli("merge", made.digest.hex[:8], "--base", made.base, "--to", tmp_path / "out")
        assert (done.code, done.out) == (0, f"{tmp_path / 'out'}\n")
        assert "1 tensors merged as fp32, 0 copied" in done.err

    def test_json_holds_the_manifest(self, made: Bench, cli: CommandLine, tmp_path: Path) -> None:
        out = cli.ok("merge", str(made.digest), "--base", made.base, "--to", tmp_path / "out", "--json")
        assert json.loads(out) == {
            "directory": str(tmp_path / "out"),
            "manifest": json.loads((tmp_path / "out" / MERGE_MANIFEST).read_text()),
        }

    def test_an_output_that_exists_is_exit_2(self, made: Bench, cli: CommandLine, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        assert cli("merge", made.digest.hex, "--base", made.base, "--to", tmp_path / "out").code == 2

    def test_an_unknown_recipe_is_exit_2_and_shows_the_known_ones(
        self, made: Bench, cli: CommandLine, tmp_path: Path
    ) -> None:
        done = cli("merge", made.digest.hex, "--base", made.base, "--to", tmp_path / "out", "--recipe", "fp64")
        assert done.code == 2
        assert all(recipe in done.err for recipe in RECIPES)

    def test_a_missing_base_is_exit_3(self, made: Bench, cli: CommandLine, tmp_path: Path) -> None:
        assert cli("merge", made.digest.hex, "--base", tmp_path / "none", "--to", tmp_path / "out").code == 3

    def test_a_missing_torch_is_exit_2_and_says_what_to_install(
        self, made: Bench, cli: CommandLine, tmp_path: Path
    ) -> None:
        (tmp_path / "without").mkdir()
        (tmp_path / "without/torch.py").write_text("raise ImportError('no torch here')")
        arguments = ("merge", made.digest.hex, "--base", made.base, "--to", tmp_path / "out")
        done = cli(*arguments, PYTHONPATH=str(tmp_path / "without"))
        assert done.code == 2
        assert "needs torch. pip install 'aorlta-registry[torch]'" in done.err

    def test_a_killed_merge_leaves_only_a_partial_that_the_next_one_replaces(
        self, cli: CommandLine, tmp_path: Path
    ) -> None:
        names = [f"m{number}" for number in range(48)]
        state = {f"{name}.weight": torch.randn(1024, 1024) for name in names}
        lora = {key: value for name in names for key, value in factors(name, rows=1024, columns=1024).items()}
        made = synthetic(tmp_path, state, lora)
        arguments = ["merge", made.digest.hex, "--base", made.base, "--to", tmp_path / "out"]
        partial = tmp_path / "out.partial/model.safetensors"
        process = subprocess.Popen([*COMMAND, *map(str, arguments)], env=cli.environment())
        while process.poll() is None and not (partial.exists() and partial.stat().st_size > 1 << 20):
            time.sleep(0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert partial.exists()
        assert contents(tmp_path / "out") == {}  # the reserved name
        (tmp_path / "out").rmdir()
        cli.ok(*arguments)
        assert not partial.exists()
        assert set(contents(tmp_path / "out")) == {"model.safetensors", MERGE_MANIFEST}


_MEASURED = """
import sys
from registry import Registry

def status(field):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(field))

for number, (home, digest, base) in enumerate(zip(*[iter(sys.argv[1:])] * 3)):
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts from here
    before = status("VmRSS")
    Registry(home).merge(digest, base, f"{home}-{number}")
print(status("VmHWM") - before)
"""


@pytest.mark.slow
def test_memory_is_at_most_six_times_the_largest_tensor_however_large_the_model(tmp_path: Path) -> None:
    """Measured above torch and all that it loads, which a small merge in the same process has loaded before."""
    sizes = {f"m{number}": (512, 512) for number in range(400)} | {"big": (8192, 4096)}
    merges = []
    for name, modules in (("warm", ["m0"]), ("real", list(sizes))):
        (tmp_path / name).mkdir()
        state = {f"{module}.weight": torch.zeros(sizes[module], dtype=torch.bfloat16) for module in modules}
        lora = {
            key: each
            for module in modules
            for key, each in factors(module, rows=sizes[module][0], columns=sizes[module][1]).items()
        }
        merges.append(synthetic(tmp_path / name, state, lora))
    arguments = [str(argument) for each in merges for argument in (each.home, each.digest.hex, each.base)]
    done = subprocess.run([sys.executable, "-c", _MEASURED, *arguments], capture_output=True, text=True, check=True)
    times = int(done.stdout) / (8192 * 4096 * 2)
    assert 2 < times <= 6, f"{times:.2f} times the largest tensor"
