"""Files and directories on a local disk: durable writes, verified copies, publication by rename.

Knows nothing of adapters. Every OSError leaves here as one of the project's own errors.
"""

from registry.disk.compare import Comparison
from registry.disk.files import (
    blocks,
    copy_verified,
    hash_file,
    holds_safetensors,
    list_names,
    make_directories,
    open_regular,
    read_small,
    sync_directory,
    translated,
    write_file,
)
from registry.disk.filesystems import is_writable, network_kind
from registry.disk.new_files import NewFiles
from registry.disk.output import OutputDirectory

__all__ = [
    "Comparison",
    "NewFiles",
    "OutputDirectory",
    "blocks",
    "copy_verified",
    "hash_file",
    "holds_safetensors",
    "is_writable",
    "list_names",
    "make_directories",
    "network_kind",
    "open_regular",
    "read_small",
    "sync_directory",
    "translated",
    "write_file",
]
