"""Readers of checkpoints. Each turns files into the core's values, without torch and without running pickled code.

Knows nothing of how adapters are laid out, of the store or the index.
"""

from registry.checkpoints.readers import (
    identify,
    is_checkpoint,
    lacks,
    listed_digest,
    read_checkpoint,
    run_checkpoints,
    signature,
    tensor_files,
    tensor_size,
)

__all__ = [
    "identify",
    "is_checkpoint",
    "lacks",
    "listed_digest",
    "read_checkpoint",
    "run_checkpoints",
    "signature",
    "tensor_files",
    "tensor_size",
]
