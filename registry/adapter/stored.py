"""Reading an adapter back from its open file. The tensors stay in the file (mapped, not read) until something uses
them."""

from __future__ import annotations

import mmap
from typing import BinaryIO

from registry.core.contents import AdapterContents
from registry.core.peft_tensors import decode
from registry.disk.safetensors import read_header, tensors_in


def read_adapter(weights: BinaryIO, config: bytes) -> AdapterContents:
    """What an adapter is.

    Args:
        weights: the open adapter_model.safetensors. The tensors stay valid when it is closed.
        config: the text of adapter_config.json.

    Raises:
        StorageError: the file cannot be read; otherwise as `decode`.
    """
    header = read_header(weights)
    mapped = memoryview(mmap.mmap(weights.fileno(), 0, access=mmap.ACCESS_READ))
    return decode(tensors_in(header, mapped), config, str(weights.name))
