"""Get: a verified copy of an adapter in a directory of the user's."""

from __future__ import annotations

from registry.core.digest import Digest
from registry.core.model import ADAPTER_FILES
from registry.disk import OutputDirectory, copy_verified
from registry.operations import seal
from registry.store import Store


def get(store: Store, digest: Digest, directory: str) -> str:
    """Copy the adapter's files into the new directory `directory`; returns its absolute path.

    Every byte is hashed on its way, and the directory gets its name only after the last one matched. The copy is not
    synced: it can be made again at any time.

    Raises:
        NotFound: no such adapter.
        OutputExists: the directory exists or appeared meanwhile.
        IntegrityError: stored bytes do not match; nothing is handed out.
    """
    expected = seal.read_seal(store, digest).files
    with OutputDirectory(directory, ADAPTER_FILES, keep_partial=False) as output:
        for name in ADAPTER_FILES:
            with seal.opened(store, digest, name) as source:
                copy_verified(source, output.files.path(name), expected[name])
        output.publish(durable=False)
    return output.path
