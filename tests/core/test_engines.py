"""What engines make of adapters: each fact, and that nothing is said against what they load as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from registry.core.engines import Engine, Fitness, Harm, fitness
from registry.core.errors import Refused
from tests.support.merging import factors, read_adapter
from tests.support.taking import PREFIX, Q, V, plain

VLLM, SGLANG, PEFT = Engine
EXPERTS = f"{PREFIX}model.layers.0.mlp.experts"
PACKED = {f"{EXPERTS}.lora_A.weight": torch.ones(8, 16), f"{EXPERTS}.lora_B.weight": torch.ones(24, 8)}
EMBEDDING = {
    f"{PREFIX}model.embed_tokens.lora_embedding_A": torch.ones(4, 64),
    f"{PREFIX}model.embed_tokens.lora_embedding_B": torch.ones(16, 4),
}
FACTS: list[tuple[str, dict[str, torch.Tensor], dict[str, Any], dict[Engine, tuple[Harm, str]]]] = [
    ("plain", {}, {}, {}),
    (
        "dora",
        {f"{PREFIX}{Q}.lora_magnitude_vector": torch.ones(24)},
        {"use_dora": True},
        {VLLM: (Harm.REFUSED, "use_dora"), SGLANG: (Harm.REFUSED, "use_dora")},
    ),
    (
        "whole modules",
        {f"{PREFIX}lm_head.weight": torch.ones(64, 16)},
        {"modules_to_save": ["lm_head"]},
        {VLLM: (Harm.REFUSED, "modules_to_save ['lm_head']"), SGLANG: (Harm.ALTERED, "lm_head.weight")},
    ),
    ("whole modules without tensors", {}, {"modules_to_save": ["lm_head"]}, {VLLM: (Harm.REFUSED, "modules_to_save")}),
    (
        "an embedding saved unasked",
        {f"{PREFIX}model.embed_tokens.weight": torch.ones(64, 16)},
        {},
        {VLLM: (Harm.REFUSED, "embed_tokens"), SGLANG: (Harm.ALTERED, "embed_tokens")},
    ),
    ("biases without tensors", {}, {"bias": "all"}, {VLLM: (Harm.REFUSED, "bias 'all'")}),
    (
        "biases",
        {f"{PREFIX}{Q}.bias": torch.ones(24)},
        {"bias": "lora_only"},
        {VLLM: (Harm.REFUSED, "bias 'lora_only'"), SGLANG: (Harm.ALTERED, f"{Q}.bias")},
    ),
    (
        "biases of lora_B",
        {f"{PREFIX}{Q}.lora_B.bias": torch.ones(24)},
        {"lora_bias": True},
        {VLLM: (Harm.REFUSED, Q), SGLANG: (Harm.ALTERED, Q)},
    ),
    ("a LoRA on an embedding", EMBEDDING, {}, {VLLM: (Harm.REFUSED, "embed"), SGLANG: (Harm.UNKNOWN, "embed")}),
    ("rsLoRA", {}, {"use_rslora": True}, {SGLANG: (Harm.ALTERED, "use_rslora")}),
    (
        "another alpha somewhere",
        {},
        {"alpha_pattern": {"q_proj": 16}},
        {VLLM: (Harm.ALTERED, Q), SGLANG: (Harm.REFUSED, "q_proj")},
    ),
    (
        "another rank somewhere",
        factors(V, r=8),
        {"rank_pattern": {"v_proj": 8}},
        {VLLM: (Harm.ALTERED, V), SGLANG: (Harm.REFUSED, "v_proj")},
    ),
    (
        "another rank, of the same scale",
        factors(V, r=8),
        {"rank_pattern": {"v_proj": 8}, "alpha_pattern": {"v_proj": 16}},
        {SGLANG: (Harm.REFUSED, "v_proj")},
    ),
    ("patterns that say the same again", {}, {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {".*": 8}}, {}),
    ("a pattern of targets", {}, {"target_modules": ".*q_proj"}, {SGLANG: (Harm.REFUSED, "target_modules '.*q_proj'")}),
    (
        "targets that leave one out",
        {},
        {"target_modules": ["v_proj"]},
        {VLLM: (Harm.ALTERED, Q), SGLANG: (Harm.ALTERED, Q)},
    ),
    (
        "packed experts",
        PACKED,
        {"target_parameters": ["mlp.experts.gate_up_proj"]},
        {VLLM: (Harm.UNKNOWN, "experts"), SGLANG: (Harm.UNKNOWN, "experts")},
    ),
    (
        "a residual base",
        {},
        {"init_lora_weights": "pissa"},
        dict.fromkeys(Engine, (Harm.ALTERED, "init_lora_weights 'pissa'")),
    ),
    (
        "trained tokens",
        {},
        {"trainable_token_indices": [1]},
        {VLLM: (Harm.UNKNOWN, "trainable_token_indices [1]"), SGLANG: (Harm.UNKNOWN, "trainable_token_indices [1]")},
    ),
    (
        "a setting of a later version",
        {},
        {"use_later": True},
        {VLLM: (Harm.UNKNOWN, "use_later True"), SGLANG: (Harm.UNKNOWN, "use_later True")},
    ),
    ("settings of training alone", {}, {"lora_dropout": 0.1, "layers_to_transform": [0], "use_later": None}, {}),
    (
        "tensors that mean nothing",
        {f"{PREFIX}other.thing": torch.ones(2)},
        {},
        {VLLM: (Harm.REFUSED, "other.thing"), SGLANG: (Harm.ALTERED, "other.thing")},
    ),
]


def found(tmp_path: Path, engine: Engine, state: dict[str, torch.Tensor], **config: Any) -> Fitness:
    return fitness(read_adapter(plain(tmp_path / "a", state=state, **config)), engine)


@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize(("state", "config", "harms"), [fact[1:] for fact in FACTS], ids=[fact[0] for fact in FACTS])
def test_engine_is_said_to_do_what_it_does(
    engine: Engine,
    state: dict[str, torch.Tensor],
    config: dict[str, Any],
    harms: dict[Engine, tuple[Harm, str]],
    tmp_path: Path,
) -> None:
    told = found(tmp_path, engine, state, **config)
    assert told.engine is engine
    if engine not in harms:
        assert told.unfit == ()
        return
    harm, what = harms[engine]
    assert [each.harm for each in told.unfit if what in each.what] == [harm], told
    assert what in told.reasons()


@pytest.mark.parametrize(("state", "config", "rank"), [({}, {}, 4), (factors(V, r=8), {"rank_pattern": {V: 8}}, 8)])
def test_highest_rank_of_any_module_counts(
    state: dict[str, torch.Tensor], config: dict[str, Any], rank: int, tmp_path: Path
) -> None:
    contents = read_adapter(plain(tmp_path / "a", state=state, **config))
    for engine in (VLLM, SGLANG):
        assert fitness(contents, engine).max_lora_rank == rank
        started = {limit: fitness(contents, engine, limit).unfit[-1:] for limit in (rank - 1, rank)}
        (beyond,) = started[rank - 1]
        assert (beyond.harm, beyond.what) == (Harm.REFUSED, f"rank {rank}")
        assert started[rank] == fitness(contents, engine).unfit[-1:]
    assert fitness(contents, PEFT, 1).unfit == ()


def test_only_engines_that_are_known_have_facts() -> None:
    assert [Engine.of(name) for name in ("vllm", "sglang", "peft")] == [*Engine]
    with pytest.raises(Refused, match="vllm, sglang, peft"):
        Engine.of("VLLM")
