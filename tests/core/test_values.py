"""Values are values: nobody who is handed one can change it."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import registry


def test_every_public_dataclass_is_frozen_but_the_one_that_counts() -> None:
    seen = []
    for module in pkgutil.walk_packages(registry.__path__, "registry."):
        if module.name.endswith("__main__"):  # that would run the program
            continue
        for each in vars(importlib.import_module(module.name)).values():
            if isinstance(each, type) and each.__module__ == module.name and dataclasses.is_dataclass(each):
                seen.append(each)
    changing = {each.__name__ for each in seen if not each.__dataclass_params__.frozen}  # type: ignore[attr-defined]
    assert {name for name in changing if not name.startswith("_")} == {"Tally"}
    assert len(seen) > 80
