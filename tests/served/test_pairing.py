"""Served tensors find the base tensors they are made of: by name, through known prefixes, as fused rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.errors import UnsupportedLora
from registry.served.names import RENAMINGS
from registry.served.pairing import pair_up

ATTENTION = "layers.0.self_attn"
BASE = {
    f"model.{ATTENTION}.q_proj.weight": (32, 16),
    f"model.{ATTENTION}.k_proj.weight": (8, 16),
    f"model.{ATTENTION}.v_proj.weight": (8, 16),
    f"model.{ATTENTION}.q_proj.bias": (32,),
    f"model.{ATTENTION}.k_proj.bias": (8,),
    f"model.{ATTENTION}.v_proj.bias": (8,),
    "model.layers.0.mlp.gate_proj.weight": (24, 16),
    "model.layers.0.mlp.up_proj.weight": (24, 16),
    "model.norm.weight": (16,),
    "lm_head.weight": (64, 16),
}
QKV = tuple(f"model.{ATTENTION}.{each}_proj.weight" for each in "qkv")


def test_equal_names_are_paired_as_they_are() -> None:
    found = pair_up(BASE, BASE, "e")
    assert found.parts == {name: (name,) for name in BASE}
    assert (found.renamed, found.strangers) == ("", ())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.", "model.language_model."),
        ("model.", "language_model.model."),
        ("model.", "language_model."),
        ("model.", ""),
        ("", "base_model.model."),
    ],
)
def test_known_prefixes_are_seen_through_in_both_directions(old: str, new: str) -> None:
    other = {new + name.removeprefix(old) if name.startswith(old) else name: BASE[name] for name in BASE}
    origin = dict(zip(other, BASE, strict=True))
    there, back = pair_up(BASE, other, "e"), pair_up(other, BASE, "e")
    assert there.parts == {name: (origin[name],) for name in other}
    assert there.strangers == ()
    assert back.parts == {origin[name]: (name,) for name in other}
    assert back.strangers == ()
    assert there.renamed
    assert back.renamed


def test_fused_rows_are_their_parts_in_the_engines_order() -> None:
    served = {
        f"model.{ATTENTION}.qkv_proj.weight": (48, 16),
        f"model.{ATTENTION}.qkv_proj.bias": (48,),
        "model.layers.0.mlp.gate_up_proj.weight": (48, 16),
        "model.norm.weight": (16,),
    }
    found = pair_up(BASE, served, "e").parts
    assert found[f"model.{ATTENTION}.qkv_proj.weight"] == QKV
    assert found[f"model.{ATTENTION}.qkv_proj.bias"] == tuple(name.replace("weight", "bias") for name in QKV)
    assert found["model.layers.0.mlp.gate_up_proj.weight"] == tuple(
        f"model.layers.0.mlp.{each}_proj.weight" for each in ("gate", "up")
    )


def test_fused_rows_are_found_under_another_prefix() -> None:
    served = {f"model.language_model.{ATTENTION}.qkv_proj.weight": (48, 16), "model.language_model.norm.weight": (16,)}
    found = pair_up(BASE, served, "e")
    assert found.parts[f"model.language_model.{ATTENTION}.qkv_proj.weight"] == QKV
    assert found.strangers == ()


@pytest.mark.parametrize("shape", [(47, 16), (48, 15), (48,), (48, 16, 1), ()])
def test_fused_rows_that_do_not_add_up_are_strangers(shape: tuple[int, ...]) -> None:
    name = f"model.{ATTENTION}.qkv_proj.weight"
    found = pair_up(BASE, {name: shape, "model.norm.weight": (16,)}, "e")
    assert found.strangers == (name,)


def test_fused_parts_of_unequal_width_are_strangers() -> None:
    base = {**BASE, f"model.{ATTENTION}.v_proj.weight": (8, 12)}
    name = f"model.{ATTENTION}.qkv_proj.weight"
    assert pair_up(base, {name: (48, 16), "model.norm.weight": (16,)}, "e").strangers == (name,)


def test_fused_scalars_have_no_rows_and_are_strangers() -> None:
    scales = {f"model.{ATTENTION}.{each}_proj.weight_scale": () for each in "qkv"}
    name = f"model.{ATTENTION}.qkv_proj.weight_scale"
    assert pair_up({**BASE, **scales}, {name: (), "model.norm.weight": (16,)}, "e").strangers == (name,)


def test_a_fused_name_with_a_part_missing_is_a_stranger() -> None:
    base = {name: shape for name, shape in BASE.items() if "k_proj" not in name}
    name = f"model.{ATTENTION}.qkv_proj.weight"
    assert pair_up(base, {name: (40, 16), "model.norm.weight": (16,)}, "e").strangers == (name,)


def test_another_shape_under_the_same_name_is_a_stranger() -> None:
    found = pair_up(BASE, {**BASE, "model.norm.weight": (17,)}, "e")
    assert found.strangers == ("model.norm.weight",)
    assert "model.norm.weight" not in found.parts


def test_the_prefix_that_fits_most_tensors_is_taken() -> None:
    base = {"model.a.weight": (2,), "model.b.weight": (2,), "a.weight": (2,)}
    served = {"model.language_model.a.weight": (2,), "model.language_model.b.weight": (2,)}
    assert pair_up(base, served, "e").parts == {
        f"model.language_model.{each}.weight": (f"model.{each}.weight",) for each in "ab"
    }


def test_no_match_at_all_shows_the_engine_and_both_sides() -> None:
    served = {f"visual.blocks.{number}.weight": (4, 4) for number in range(9)}
    with pytest.raises(UnsupportedLora) as caught:
        pair_up(BASE, served, "vllm-3")
    message = str(caught.value)
    for part in ("vllm-3", "visual.blocks.0.weight", "lm_head.weight"):
        assert part in message
    assert "visual.blocks.8.weight" not in message, "a sample, not everything"


prefixes = st.sampled_from(sorted({renaming.old for renaming in RENAMINGS}))
spelled = st.tuples(prefixes, st.sampled_from(["0.q", "1.q", "a.k_proj", "a.qkv_proj", "head"])).map("".join)
listings = st.dictionaries(spelled.map("{}.weight".format), st.just((2,)), min_size=1, max_size=12)


@given(listings, listings)
def test_no_renaming_finds_more_than_the_one_that_is_taken(
    base: dict[str, tuple[int]], served: dict[str, tuple[int]]
) -> None:
    most = max(sum(renaming(name) in base or name in base for name in served) for renaming in RENAMINGS)
    try:
        assert len(pair_up(base, served, "e").parts) == most
    except UnsupportedLora:
        assert most == 0


def test_names_are_looked_up_a_few_times_and_not_once_for_every_renaming() -> None:
    class Counting(dict[str, tuple[int, ...]]):
        lookups = 0

        def get(self, *arguments: Any) -> Any:
            self.lookups += 1
            return super().get(*arguments)

    served = {f"model.language_model.{number}.q.weight": (2,) for number in range(100)}
    base = Counting({f"model.{number}.q.weight": (2,) for number in range(100)})
    assert len(pair_up(base, served, "e").parts) == 100
    assert base.lookups < 12 * 100
