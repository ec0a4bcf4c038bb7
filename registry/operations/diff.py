"""Diff: two stored adapters, held against each other."""

from __future__ import annotations

from registry.adapter.stored import read_adapter
from registry.core.contents import AdapterContents
from registry.core.difference import Difference
from registry.core.digest import Digest
from registry.core.layout import CONFIG, WEIGHTS
from registry.operations import seal
from registry.served.differ import differ
from registry.served.runtime import require_torch
from registry.store import Store


def diff(store: Store, first: Digest, second: Digest) -> Difference:
    """How far two adapters are apart. Both are verified first.

    Raises:
        NotFound, IntegrityError: one is missing or damaged.
        UnsupportedLora: one is more than updates s*B@A, or they are of different bases.
        Refused: torch is not installed.
    """
    require_torch()
    return differ(_contents(store, first), _contents(store, second))


def _contents(store: Store, digest: Digest) -> AdapterContents:
    seal.verify(store, digest)
    with seal.opened(store, digest, WEIGHTS) as file:
        return read_adapter(file, seal.read(store, digest, CONFIG))
