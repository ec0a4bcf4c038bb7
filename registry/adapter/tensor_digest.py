"""The tensor digest: an identity of the tensors alone, whatever container, header or key prefix they come in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from registry.core import jsontext
from registry.core.contents import Extra
from registry.core.digest import Digest
from registry.core.model import Lora


def tensor_digest(lora: Lora, extras: Iterable[Extra] = ()) -> Digest:
    """sha256 over the compact JSON of `[[module, "A"|"B", dtype, shape, sha256(bytes)], ...]`, sorted.

    dtype is safetensors' name, shape a list, bytes the tensor's elements in row-major, little-endian order. Hashing
    the tensors first and their list afterwards lets several cores share the work. Tensors that are no factors of linear
    layers are further rows, `[name, role, ...]`.
    """
    named = [(pair.module, factor, tensor) for pair in lora.pairs for factor, tensor in (("A", pair.a), ("B", pair.b))]
    rows = sorted(
        [name, role, tensor.dtype.safetensors, list(tensor.shape), _sha256(tensor.contiguous())]
        for name, role, tensor in (*named, *extras)
    )
    return Digest(_sha256(jsontext.compact(rows)))


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
