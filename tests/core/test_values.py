"""Values are values: nobody who is handed one can change it."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import registry


def test_every_public_dataclass_is_frozen_but_the_one_that_counts() -> None:
    names = [each.name for each in pkgutil.walk_packages(registry.__path__, "registry.")]
    names.remove("registry.cli.__main__")  # that would run the program
    held = [each for name in names for each in vars(importlib.import_module(name)).values() if isinstance(each, type)]
    seen = {each for each in held if dataclasses.is_dataclass(each) and each.__module__.startswith("registry.")}
    changing = {each.__name__ for each in seen if not each.__dataclass_params__.frozen}  # type: ignore[attr-defined]
    assert {name for name in changing if not name.startswith("_")} == {"Tally"}
    assert len(seen) > 80
