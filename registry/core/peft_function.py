"""Whether two configs make the same function of the same tensors."""

from __future__ import annotations

from typing import Any

from registry.core.contents import AdapterContents
from registry.core.patterns import scale_of


def same_function(one: AdapterContents, other: AdapterContents) -> bool:
    """Whether two readings of the same tensors compute the same.

    What a setting does to these modules counts, not how it is written: a pattern and its default may mean one thing.
    """
    return _meaning(one) == _meaning(other)


def _meaning(contents: AdapterContents) -> dict[str, Any]:
    settings = contents.lora.settings
    return {
        "scales": {pair.module: scale_of(pair.module, settings, pair.rank) for pair in contents.lora.pairs},
        "embeddings": {pair.module: scale_of(pair.module, settings, pair.rank) for pair in contents.embeddings},
        "transposed": settings.fan_in_fan_out,
        "tensors": sorted((extra.name, extra.role) for extra in contents.extras()),
        "unsupported": sorted(contents.unsupported),
        "unknown": sorted(contents.unknown),
        # Of packed factors nothing but the settings themselves says what they do.
        "packed": (settings, sorted(contents.packed)) if contents.packed else None,
    }
