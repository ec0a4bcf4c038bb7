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
    whole,
    write_file,
)
from registry.disk.filesystems import is_writable, network_kind
from registry.disk.inside import (
    directory_inside,
    kind_inside,
    make_inside,
    names_inside,
    open_inside,
    require_directory,
)
from registry.disk.new_files import NewFiles
from registry.disk.output import OutputDirectory
from registry.disk.replacement import Replacement, remove_directory

__all__ = [
    "Comparison",
    "NewFiles",
    "OutputDirectory",
    "Replacement",
    "blocks",
    "copy_verified",
    "directory_inside",
    "hash_file",
    "holds_safetensors",
    "is_writable",
    "kind_inside",
    "list_names",
    "make_directories",
    "make_inside",
    "names_inside",
    "network_kind",
    "open_inside",
    "open_regular",
    "read_small",
    "remove_directory",
    "require_directory",
    "sync_directory",
    "translated",
    "whole",
    "write_file",
]
