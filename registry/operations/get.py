"""Get: a verified copy of an adapter in a directory of the user's."""

from __future__ import annotations

import os

from registry.core.digest import Digest
from registry.core.layout import ADAPTER_FILES
from registry.disk import NewFiles, OutputDirectory, Replacement, copy_verified
from registry.operations import seal
from registry.store import Store


def get(store: Store, digest: Digest, directory: str, *, force: bool = False) -> str:
    """Copy the adapter's files into the new directory `directory`; returns its absolute path.

    Every byte is hashed on its way, and the directory gets its name only after the last one matched. The copy is not
    synced: it can be made again at any time. With `force` it takes the place of another adapter's, in one step.

    Raises:
        NotFound: no such adapter.
        OutputExists: the directory exists or appeared meanwhile; with `force`, it holds more than an adapter's files.
        IntegrityError: stored bytes do not match; nothing is handed out.
    """
    expected = seal.read_seal(store, digest).files
    if force and os.path.lexists(directory):
        with Replacement(directory, ADAPTER_FILES) as replacement:
            _copy(store, digest, expected, replacement.files)
            replacement.publish()
        return replacement.path
    with OutputDirectory(directory, ADAPTER_FILES, keep_partial=False) as output:
        _copy(store, digest, expected, output.files)
        output.publish(durable=False)
    return output.path


def _copy(store: Store, digest: Digest, expected: dict[str, Digest], to: NewFiles) -> None:
    for name in ADAPTER_FILES:
        with seal.opened(store, digest, name) as source:
            copy_verified(source, to.path(name), expected[name])
