"""The adapter's formats: canonical safetensors bytes, adapter_config.json, export-manifest.json, the tensor digest.

Turns values into bytes. Knows neither checkpoints' formats nor where the bytes are kept.
"""

from registry.adapter.config import adapter_config
from registry.adapter.manifest import export_manifest, same_export
from registry.adapter.tensor_digest import tensor_digest
from registry.adapter.weights import Found, Weights, encode, lay_out, named

__all__ = [
    "Found",
    "Weights",
    "adapter_config",
    "encode",
    "export_manifest",
    "lay_out",
    "named",
    "same_export",
    "tensor_digest",
]
