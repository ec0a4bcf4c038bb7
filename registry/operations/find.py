"""Find: what a person says of a checkpoint they look for, as its digest. The search itself is the index's."""

from __future__ import annotations

import os

from registry.core.digest import Digest
from registry.core.errors import InvalidReference, NotFound


def checkpoint_digest(said: str) -> Digest:
    """The digest that `said` is, or that of the tensor file it leads to: the file itself, or the one in a directory.

    Raises:
        NotFound: it is neither a digest nor a path to something.
        Refused: not a regular file.
        StorageError: unreadable.
    """
    try:
        return Digest.parse(said)
    except InvalidReference as error:
        if not os.path.lexists(said):
            hint = "Give a checkpoint's digest, its directory or its tensor file"
            raise NotFound("no such checkpoint", path=said, hint=hint) from error
    from registry.checkpoints import identify  # noqa: PLC0415  only a path needs to be understood

    return identify(said)[1]
