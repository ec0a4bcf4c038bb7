"""Stores: where adapters and records are kept. They speak digests, names and bytes; only the local one has paths."""

from registry.store.base import Files, Refused, Stage, Store, pass_over
from registry.store.local import LocalStore

__all__ = ["Files", "LocalStore", "Refused", "Stage", "Store", "pass_over"]
