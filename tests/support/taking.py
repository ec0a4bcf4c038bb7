"""What must hold whenever a registry is given a PEFT adapter: its bytes are kept, or nothing is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from registry import Registry
from registry.core.errors import Refused, RegistryError
from registry.core.layout import ADAPTER_FILES, CONFIG, WEIGHTS
from registry.operations.add import Added
from tests.support.merging import factors, save_adapter
from tests.support.trees import snapshot

Q, V = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"
PREFIX = "base_model.model."
QUIET = {"base_model_name_or_path": "org/base"}
"""Settings without which every adapter would be warned of."""


def kept(home: Path, source: Path, **options: Any) -> Added:
    """Add an adapter that must be stored byte for byte, and leave its source alone."""
    before = snapshot(source)
    added = Registry(home).add(source, **{"run": "run", **options})
    stored = Path(Registry(home).path(added.digest.hex))
    assert sorted(path.name for path in stored.iterdir()) == sorted(ADAPTER_FILES)
    for name in (WEIGHTS, CONFIG):
        assert (stored / name).read_bytes() == (source / name).read_bytes()
    assert added.digest.hex == hashlib.sha256((source / WEIGHTS).read_bytes()).hexdigest()
    assert added.manifest["checkpoint"]["sha256"] == added.digest.hex
    assert (added.manifest["checkpoint"]["reader"], added.manifest["derived"]) == ("peft", None)
    assert snapshot(source) == before
    return added


def refused(home: Path, source: Path, says: str, kind: type[RegistryError] = Refused, **options: Any) -> RegistryError:
    """Give an adapter that must be refused: nothing is published, and its source is left alone."""
    before = snapshot(source)
    with pytest.raises(kind, match=says) as caught:
        Registry(home).add(source, **options)
    assert not home.exists()
    assert snapshot(source) == before
    assert str(source) in str(caught.value.path)
    return caught.value


def warnings_of(added: Added) -> list[str]:
    warnings: list[str] = added.manifest["warnings"]
    return warnings


def plain(directory: Path, *modules: str, state: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    """A sound adapter on some modules, and whatever else is put into it."""
    made: dict[str, torch.Tensor] = {}
    for module in modules or (Q,):
        made |= factors(module)
    return save_adapter(directory, made | (state or {}), **{**QUIET, **config})


def rekeyed(directory: Path, change: Any, **config: Any) -> Path:
    """A sound adapter whose keys were changed."""
    state = {change(key): tensor for key, tensor in (factors(Q) | factors(V)).items()}
    return save_adapter(directory, state, **{**QUIET, **config})


def pickled(directory: Path, state: Any, **config: Any) -> Path:
    """The same saved as adapter_model.bin."""
    save_adapter(directory, factors(Q), **{**QUIET, **config})
    (directory / WEIGHTS).unlink()
    torch.save(state, directory / "adapter_model.bin")
    return directory


def resave(directory: Path, state: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    """Give an adapter other tensors."""
    save_file(state, directory / WEIGHTS, metadata=metadata)
    return directory


def exactly(text: str) -> str:
    return re.escape(text)
