"""The names of an adapter's files."""

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
MANIFEST = "export-manifest.json"
ADAPTER_FILES = (WEIGHTS, CONFIG, MANIFEST)
"""The files of an adapter directory, in the order in which they are written."""
PICKLED = "adapter_model.bin"
"""The weights of adapters that peft saved before it knew safetensors."""
