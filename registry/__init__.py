"""aorlta-reg: a content-addressed registry of LoRA adapters, exported bit for bit from RL checkpoints."""

from registry.core.digest import Digest
from registry.core.errors import (
    Ambiguous,
    Conflict,
    IntegrityError,
    InvalidReference,
    NotFound,
    Refused,
    RegistryError,
    StorageError,
)
from registry.core.version import VERSION
from registry.registry import Registry, export_checkpoint

__all__ = [
    "VERSION",
    "Ambiguous",
    "Conflict",
    "Digest",
    "IntegrityError",
    "InvalidReference",
    "NotFound",
    "Refused",
    "Registry",
    "RegistryError",
    "StorageError",
    "export_checkpoint",
]
