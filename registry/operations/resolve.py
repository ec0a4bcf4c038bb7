"""From what a person typed to the one adapter it means, found in the store itself."""

from __future__ import annotations

from registry.core import refs
from registry.core.digest import Digest
from registry.core.errors import Ambiguous, NotFound
from registry.store import Store

_SHOWN = 10


def resolve(store: Store, reference: str) -> Digest:
    """The digest that a reference names.

    Raises:
        InvalidReference: it cannot be a reference.
        NotFound: nothing stored matches.
        Ambiguous: several adapters start with this prefix.
    """
    parsed = refs.parse(reference)
    if isinstance(parsed, Digest):
        if not store.contains(parsed):
            raise NotFound("no such adapter in the store", key=str(parsed))
        return parsed
    matches = store.find(parsed.hex, _SHOWN + 1)
    if not matches:
        raise NotFound("no adapter's digest starts with this", key=parsed.hex)
    if len(matches) > 1:
        shown = [match.hex[: len(parsed.hex) + 8] for match in matches[:_SHOWN]]
        raise Ambiguous(
            "more than one adapter starts with this",
            candidates=shown + ["..."] * (len(matches) > _SHOWN),
            key=parsed.hex,
            hint="Give more digits",
        )
    return matches[0]
