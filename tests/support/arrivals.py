"""Runs that are taken in, and a watch of one that is gone through look by look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from registry.operations import watch
from registry.operations.arrivals import Arrival
from tests.support.runs import contents, lora_state, write_checkpoint

CONFIG = {"run_id": "run", "model": {"base": "org/base"}}


def write_run(run: Path, *steps: int) -> list[Path]:
    return [
        write_checkpoint(run, contents(lora_state(seed=step), iteration=step), iteration=step, config=CONFIG)
        for step in steps
    ]


def states(found: Iterator[Arrival]) -> list[tuple[int, str]]:
    return [(each.step, each.state.value) for each in found]


class Watch:
    """A watch that is looked through one look at a time."""

    def __init__(self, registry: Registry, run: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.found: list[Arrival] = []
        self._between: Iterator[Any] = iter(())
        monkeypatch.setattr(watch.time, "sleep", self._sleep)
        self._arrivals = registry.watch(run, every=0.01, **options)

    def through(self, *between: Callable[[], Any]) -> list[tuple[int, str]]:
        """What came of looks, between which these happen, and of two more."""
        self._between = iter((*between, lambda: None, lambda: None))
        self.found = []
        with pytest.raises(_Enough):
            self.found.extend(self._arrivals)
        return states(iter(self.found))

    def _sleep(self, _seconds: float) -> None:
        step = next(self._between, None)
        if step is None:
            raise _Enough
        step()


class _Enough(Exception):
    pass
