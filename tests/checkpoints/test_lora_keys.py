"""LoRA factors are found under every usual name, paired, and refused by name where they are no whole LoRA."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

from registry.core.errors import UnsupportedLora
from registry.core.model import Lora
from tests.support.runs import MODULES, contents, lora_state
from tests.support.values import raw, read, state_of

State = dict[str, Any]
FIRST = MODULES[0]
A, B = f"{FIRST}.lora_A.weight", f"{FIRST}.lora_B.weight"


def expected(state: State) -> dict[str, bytes]:
    return {name: raw(value) for name, value in state.items()}


def spelled(spelling: str, state: State) -> State:
    """Rename every key: {M} is the module, {F} its factor, A or B, and {f} the same in lower case."""
    keys = {}
    for name in state:
        module, _, factor = name.removesuffix(".weight").rpartition(".lora_")
        keys[name] = spelling.format(M=module, F=factor, f=factor.lower())
    return {keys[name]: value for name, value in state.items()}


@pytest.mark.parametrize(
    "spelling",
    [
        "{M}.lora_{F}.weight",
        "{M}.lora_{F}",
        "{M}.lora_{F}.default.weight",
        "{M}.lora_{F}.default",
        "{M}.lora_{f}.weight",
        "{M}.lora_{f}",
        "{M}.lora_{f}.default.weight",
    ],
)
def test_every_spelling_of_a_factor_is_found(tmp_path: Path, spelling: str) -> None:
    state = lora_state()
    checkpoint = read(tmp_path / "run", contents(spelled(spelling, state)))
    assert state_of(checkpoint.lora) == expected(state)
    assert checkpoint.stripped == ()


@pytest.mark.parametrize(
    ("spelling", "stripped"),
    [
        ("base_model.model.{M}.lora_{F}.weight", {"base_model.model."}),
        ("base_model.model.{M}.lora_{F}.default.weight", {"base_model.model."}),
        ("module.{M}.lora_{F}.weight", {"module."}),
        ("module.module.{M}.lora_{F}", {"module."}),
        ("_orig_mod.{M}.lora_{F}.weight", {"_orig_mod."}),
        ("module._orig_mod.{M}.lora_{F}.weight", {"module.", "_orig_mod."}),
        ("_orig_mod.module.{M}.lora_{F}.weight", {"module.", "_orig_mod."}),
        ("{M}._orig_mod.lora_{F}.weight", {"_orig_mod."}),
        (
            "_fsdp_wrapped_module.{M}._checkpoint_wrapped_module.lora_{F}",
            {"_checkpoint_wrapped_module.", "_fsdp_wrapped_module."},
        ),
        ("module.base_model.model.{M}.lora_{F}.weight", {"module.base_model.model."}),
        ("base_model.model._orig_mod.{M}.lora_{F}.weight", {"base_model.model.", "_orig_mod."}),
        ("base_model._fsdp_wrapped_module.model.{M}.lora_{F}.weight", {"base_model.model.", "_fsdp_wrapped_module."}),
        ("actor.base_model.model.{M}.lora_{F}.weight", {"actor.base_model.model."}),
    ],
)
def test_wrapper_prefixes_are_removed_wherever_they_stand_and_recorded(
    tmp_path: Path, spelling: str, stripped: set[str]
) -> None:
    """Soup#335, prime-rl#1388, miles_diffusion#206"""
    state = lora_state()
    checkpoint = read(tmp_path / "run", contents(spelled(spelling, state)))
    assert state_of(checkpoint.lora) == expected(state)
    assert set(checkpoint.stripped) == stripped


def test_a_wrapper_in_the_middle_of_a_path_is_removed(tmp_path: Path) -> None:
    """prime-rl#1388"""
    state = lora_state()
    wrapped = {
        name.replace("layers.0", "layers.0._checkpoint_wrapped_module").replace(
            "mlp", "_fsdp_wrapped_module.mlp"
        ): value
        for name, value in state.items()
    }
    checkpoint = read(tmp_path / "run", contents(wrapped))
    assert state_of(checkpoint.lora) == expected(state)
    assert checkpoint.stripped == ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


@pytest.mark.parametrize("name", ["modules.q", "a.module.q", "database_model.model.q", "my_orig_mod.q", "base_model.q"])
def test_names_that_only_look_like_wrappers_are_kept(tmp_path: Path, name: str) -> None:
    checkpoint = read(tmp_path / "run", contents(lora_state(modules=(name,))))
    assert [pair.module for pair in checkpoint.lora.pairs] == [name]
    assert checkpoint.stripped == ()


@pytest.mark.parametrize(
    "other", ["_orig_mod.{M}.lora_{F}.weight", "{M}.lora_{f}", "base_model.model.{M}.lora_{F}.default.weight"]
)
def test_two_keys_that_become_one_are_refused(tmp_path: Path, other: str) -> None:
    state = lora_state()
    with pytest.raises(UnsupportedLora, match="two keys mean the same tensor") as caught:
        read(tmp_path / "run", contents({**state, **spelled(other, state)}))
    assert FIRST in str(caught.value.key)
    assert FIRST in str(caught.value.found)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"lora": {"alpha": 8}, "model": OrderedDict(state)},
        lambda state: {"lora": {"alpha": 8}, "actors": [{"state": {"model_state": {"model": state}}}]},
        lambda state: {"lora": {"alpha": 8}, **state},
        lambda state: {"lora": {"alpha": 8}, "model": defaultdict(list, state)},
        lambda state: {"lora": defaultdict(int, contents(state)["lora"])},
        lambda state: {"lora": {"alpha": 8, "state": state}, "ema": dict(state)},
        lambda state: contents({name: torch.nn.Parameter(value) for name, value in state.items()}),
        lambda state: contents(torch.nn.ParameterDict({}).state_dict() | state),
    ],
)
def test_the_factors_are_found_wherever_they_are_nested(tmp_path: Path, wrap: Callable[[State], Any]) -> None:
    state = lora_state()
    assert state_of(read(tmp_path / "run", wrap(state), config={}).lora) == expected(state)


def test_several_places_with_factors_are_refused_and_listed(tmp_path: Path) -> None:
    saved = {"lora": {"alpha": 8}, "model": lora_state(), "ema": lora_state(seed=1), "list": [lora_state(seed=2)]}
    with pytest.raises(UnsupportedLora, match=r"several mappings.*found ema, list\.0, model"):
        read(tmp_path / "run", saved)


@pytest.mark.parametrize("place", ["optimizer", "optim", "grads"])
def test_moments_and_gradients_under_the_factors_names_are_not_taken_for_weights(tmp_path: Path, place: str) -> None:
    moments = {"exp_avg": lora_state(seed=1), "exp_avg_sq": lora_state(seed=2)}
    by_name = {name: {"exp_avg": value} for name, value in lora_state(seed=3).items()}
    state = lora_state()
    saved = {"lora": {"alpha": 8}, place: {**moments, "state": by_name}}
    checkpoint = read(tmp_path / "run", {**saved, "model": state})
    assert state_of(checkpoint.lora) == expected(state)
    with pytest.raises(UnsupportedLora, match="no LoRA tensors"):
        read(tmp_path / "only moments", saved)


def test_other_tensors_elsewhere_are_counted_and_in_lora_state_refused(tmp_path: Path) -> None:
    state = lora_state()
    mixed = {**state, "model.embed_tokens.weight": torch.zeros(8, 4), "step": torch.tensor(1)}
    checkpoint = read(tmp_path / "run", {"lora": {"alpha": 8}, "model": mixed})
    assert state_of(checkpoint.lora) == expected(state)
    assert checkpoint.warnings == ("2 other tensors in model are not part of the adapter",)
    with pytest.raises(UnsupportedLora, match=r"lora\.state: 2 tensors.*found model\.embed_tokens\.weight, step"):
        read(tmp_path / "strict", contents(mixed))


@pytest.mark.parametrize(
    "name",
    [
        f"{FIRST}.lora_magnitude_vector",
        f"{FIRST}.lora_magnitude_vector.default.weight",
        f"{FIRST}.lora_B.bias",
        f"{FIRST}.lora_A.policy.weight",
        "model.embed_tokens.lora_embedding_A",
    ],
)
def test_lora_tensors_that_the_export_would_lose_are_refused_anywhere(tmp_path: Path, name: str) -> None:
    """Megatron-Bridge#6031 and its neighbours: magnitudes, biases, embeddings, a second adapter."""
    with pytest.raises(UnsupportedLora, match="would be lost") as caught:
        read(tmp_path / "run", {"lora": {"alpha": 8}, "model": {**lora_state(), name: torch.ones(24)}})
    assert name in str(caught.value)


def without(key: str) -> Callable[[State], State]:
    return lambda state: {name: value for name, value in state.items() if name != key}


def setting(key: str, value: Any) -> Callable[[State], State]:
    return lambda state: {**state, key: value}


@pytest.mark.parametrize(
    ("change", "key", "cause"),
    [
        pytest.param(without(B), A, "has no lora_B beside it", id="peft#3584 A alone"),
        pytest.param(without(A), B, "has no lora_A beside it", id="peft#3584 B alone"),
        pytest.param(setting(A, torch.ones(64)), A, r"flattened save\?; found shape \[64\]", id="peft#3251 flattened"),
        pytest.param(setting(B, torch.empty(0)), B, r"found shape \[0\]", id="peft#3251 empty, flat"),
        pytest.param(setting(B, torch.empty(24, 0)), B, r"empty tensor: a sharded save\?", id="peft#3251 empty"),
        pytest.param(setting(B, torch.empty(0, 4)), B, "empty tensor", id="peft#3251 no rows"),
        pytest.param(setting(A, torch.ones(1, 4, 16)), A, r"not a matrix.*\[1, 4, 16\]", id="3-D"),
        pytest.param(setting(A, torch.tensor(1.0)), A, r"not a matrix.*\[\]", id="0-D"),
        pytest.param(setting(A, torch.ones(4, 16, dtype=torch.int32)), A, "found int32; expected bfloat16", id="int"),
        pytest.param(setting(A, torch.ones(4, 16).to(torch.float8_e4m3fn)), A, "found float8_e4m3fn", id="fp8"),
        pytest.param(setting(A, torch.ones(4, 16, dtype=torch.complex64)), A, "found complex64", id="complex"),
        pytest.param(setting(A, 5), A, "no tensor; found int", id="number"),
        pytest.param(setting(A, None), A, "no tensor; found NoneType", id="None"),
        pytest.param(
            setting(B, torch.ones(24, 5)),
            FIRST,
            r"disagree on the rank; found lora_A \[4, 16\], lora_B \[24, 5\]",
            id="rank",
        ),
        pytest.param(setting(A, torch.ones(4, 16).to_sparse()), A, "no tensor; found torch", id="sparse"),
        pytest.param(setting(A, torch.ones(4, 16).T), FIRST, "disagree on the rank", id="transposed for good"),
    ],
)
def test_what_is_no_whole_lora_is_refused_with_key_and_cause(
    tmp_path: Path, change: Callable[[State], State], key: str, cause: str
) -> None:
    with pytest.raises(UnsupportedLora, match=cause) as caught:
        read(tmp_path / "run", contents(change(lora_state())))
    assert caught.value.key == key
    assert caught.value.path is not None
    assert caught.value.path.endswith("trainer.pt")


@pytest.mark.parametrize(
    "name",
    [
        "_orig_mod.lora_{F}.weight",
        "base_model.model.lora_{F}.weight",
        "a..q.lora_{F}",
        "a\x1b[2J.lora_{F}",
        "\ud800.base_model.model.q.lora_{F}",
    ],
)
def test_a_key_that_leaves_no_printable_module_is_refused(tmp_path: Path, name: str) -> None:
    """prime-rl#1388: none left"""
    with pytest.raises(UnsupportedLora, match="not the name of a module") as caught:
        read(tmp_path / "run", contents(spelled(name, lora_state(modules=("m",)))))
    assert str(caught.value).isprintable()


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """A real process group, of this one process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    torch.distributed.destroy_process_group()


def test_a_dtensor_is_refused_as_sharded(tmp_path: Path, mesh: DeviceMesh) -> None:
    """axolotl#3294"""
    state = lora_state()
    with pytest.raises(UnsupportedLora, match=r"a sharded tensor; found torch\.distributed\.tensor\.DTensor") as caught:
        read(tmp_path / "run", contents({**state, A: distribute_tensor(state[A], mesh, [Shard(0)])}))
    assert caught.value.key == A


@pytest.mark.parametrize("saved", [None, [], "text", {}, {"lora": {"r": 4, "alpha": 8, "state": {}}}, torch.ones(2)])
def test_a_checkpoint_without_factors_is_refused(tmp_path: Path, saved: Any) -> None:
    """trl#4416"""
    torch_file = {"saved": saved} if saved is None else saved
    with pytest.raises(UnsupportedLora, match=r"no LoRA tensors; expected keys like <module>\.lora_A\.weight"):
        read(tmp_path / "run", torch_file)


def test_a_container_that_holds_itself_is_walked_once(tmp_path: Path) -> None:
    state = lora_state()
    saved: dict[str, Any] = contents(state)
    saved["lora"]["self"] = saved["lora"]
    saved["loop"] = [saved]
    assert state_of(read(tmp_path / "run", saved).lora) == expected(state)


def test_per_expert_factors_are_modules_like_any_other(tmp_path: Path) -> None:
    """transformers#42491"""
    experts = tuple(f"model.layers.0.mlp.experts.{number}.gate_proj" for number in range(12))
    lora = read(tmp_path / "run", contents(lora_state(modules=experts))).lora
    assert [pair.module for pair in lora.pairs] == sorted(experts)


def test_pairs_come_sorted_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    lora: Lora = read(tmp_path / "run", contents(dict(reversed(lora_state().items())))).lora
    assert [pair.module for pair in lora.pairs] == sorted(MODULES)
