"""aorlta-reg: a content-addressed registry of LoRA adapters, exported bit for bit from RL checkpoints."""

from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than all this
if TYPE_CHECKING:
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
_PLACES = {"VERSION": "core.version", "Digest": "core.digest", "Registry": "registry", "export_checkpoint": "registry"}


def __getattr__(name: str) -> object:
    """A public name, loaded when it is first used: the command line is ready to be interrupted before it loads much."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'core.errors')}"), name)
    globals()[name] = value
    return value
