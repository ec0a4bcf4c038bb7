"""Values are values: nobody who is handed one can change it."""

from __future__ import annotations

import dataclasses

from tests.support.loading import load_program


def test_every_public_dataclass_is_frozen_but_the_one_that_counts() -> None:
    held = [each for module in load_program() for each in vars(module).values() if isinstance(each, type)]
    seen = {each for each in held if dataclasses.is_dataclass(each) and each.__module__.startswith("registry.")}
    changing = {each.__name__ for each in seen if not each.__dataclass_params__.frozen}  # type: ignore[attr-defined]
    assert {name for name in changing if not name.startswith("_")} == {"Tally"}
    assert len(seen) > 80
