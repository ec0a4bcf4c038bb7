"""How much work a PEFT adapter makes: as much as it has tensors and its config names, never the two multiplied."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.checkpoints.peft_warnings import warnings
from registry.core.contents import PeftAdapter
from registry.core.model import PEFT_PREFIX, Provenance
from registry.core.patterns import words_of
from registry.core.peft_tensors import decode
from tests.support.values import tensor_of

A, B = tensor_of(torch.ones(4, 16)), tensor_of(torch.ones(24, 4))
SAVED = "modules_to_save"
NAMES = st.text("ab.", max_size=8)


def calls(work: Callable[[], object]) -> int:
    """How many functions were called, those of C too."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def read(many: int, key: str, *, used: bool) -> list[str]:
    """Read an adapter of so many layers whose config names as many words, all of them `used` or none; the warnings."""
    modules = [f"model.layers.{number}.q{number:04}" for number in range(many)]
    tensors = {f"{PEFT_PREFIX}{module}.lora_{factor}.weight": each for module in modules for factor, each in FACTORS}
    tensors |= {f"{PEFT_PREFIX}model.heads.h{number:04}.weight": B for number in range(many)}
    letter = {SAVED: "h", "target_modules": "q"}[key] if used else "x"
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": modules}
    config[key] = [f"{letter}{number:04}" for number in range(many)]
    text = json.dumps(config).encode()
    contents = decode(tensors, text, "file")
    return list(warnings(PeftAdapter(contents, tensors, text, None, ()), Provenance(), None, 0, "file"))


FACTORS = (("A", A), ("B", B))


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("key", [SAVED, "target_modules"])
def test_twice_the_tensors_and_the_names_are_twice_the_work(key: str, used: bool) -> None:
    few, many = (calls(lambda count=count: read(count, key, used=used)) for count in (100, 200))  # type: ignore[misc]
    assert many < 2.3 * few


@pytest.mark.parametrize("key", [SAVED, "target_modules"])
def test_names_that_no_tensor_answers_to_are_told_and_no_others(key: str) -> None:
    assert not any("has no tensors" in each for each in read(5, key, used=True))
    told = [each for each in read(5, key, used=False) if "has no tensors" in each or "have no tensors" in each]
    assert [f"'x000{number}'" in each for number, each in enumerate(told)] == [True] * 5


@given(st.lists(NAMES), NAMES)
def test_words_are_found_at_the_end_of_a_name_as_python_says(words: list[str], name: str) -> None:
    assert sorted(words_of(words).ending(name)) == sorted({word for word in words if name.endswith(word)})
