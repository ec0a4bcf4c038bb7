"""Get: a verified copy of an adapter in a directory of the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from registry.core.digest import Digest
from registry.core.layout import ADAPTER_FILES
from registry.disk import NewFiles, OutputDirectory, Replacement, copy_verified
from registry.operations import seal
from registry.store import Store

if TYPE_CHECKING:
    from registry.operations.serving import Wanted


def get(store: Store, digest: Digest, directory: str, *, force: bool = False, wish: Wanted | None = None) -> str:
    """Copy the adapter's files into the new directory `directory`; returns its absolute path.

    Every byte is hashed on its way, and the directory gets its name only after the last one matched. The copy is not
    synced: it can be made again at any time. With `force` it takes the place of another adapter's, in one step.

    `wish` says for which engine; then only what that engine does as peft does is handed out, and only the base's name
    may differ from what is stored.

    Raises:
        NotFound: no such adapter.
        Refused: the engine would not load it, or would compute another function.
        OutputExists: the directory exists or appeared meanwhile; with `force`, it holds more than an adapter's files.
        IntegrityError: stored bytes do not match; nothing is handed out.
    """
    expected = seal.read_seal(store, digest).files
    texts: Mapping[str, bytes] = {}
    if wish is not None:
        from registry.operations.serving import adapted  # noqa: PLC0415  a plain copy needs to understand nothing

        texts = adapted(store, digest, expected, wish)
    if force and os.path.lexists(directory):
        with Replacement(directory, ADAPTER_FILES) as replacement:
            copy(store, digest, expected, texts, replacement.files)
            replacement.publish()
        return replacement.path
    with OutputDirectory(directory, ADAPTER_FILES, keep_partial=False) as output:
        copy(store, digest, expected, texts, output.files)
        output.publish(durable=False)
    return output.path


def copy(
    store: Store, digest: Digest, expected: Mapping[str, Digest], texts: Mapping[str, bytes], to: NewFiles
) -> None:
    """Copy a stored adapter's files, every byte hashed on its way; those in `texts` are written from there.

    Raises:
        NotFound, IntegrityError, StorageError.
    """
    for name in ADAPTER_FILES:
        if name in texts:
            to.write(name, [texts[name]])
            continue
        with seal.opened(store, digest, name) as source:
            copy_verified(source, to.path(name), expected[name])
