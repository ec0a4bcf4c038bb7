"""GC: the adapters that a retention policy lets go, out of the store; each checked again while nobody can rely on it
anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.core.digest import Digest
from registry.core.errors import Conflict, NotFound, RegistryError
from registry.core.retention import Policy
from registry.operations.remove import remove, size
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index


@dataclass(frozen=True, slots=True)
class Gone:
    """One adapter that went, or would go: the run and iteration of its last export, and the bytes of its files."""

    digest: Digest
    run: str | None
    iteration: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of `gc`: what went, oldest first; and why others that the policy lets go did not."""

    gone: tuple[Gone, ...]
    failed: tuple[RegistryError, ...]

    @property
    def bytes(self) -> int:
        """Of all that went."""
        return sum(each.bytes for each in self.gone)


def gc(store: Store, index: Index, policy: Policy, *, now: str, who: str, dry_run: bool) -> Collected:
    """Remove the adapters that a policy lets go. Whatever somebody begins to rely on meanwhile stays.

    Raises:
        StorageError: the index cannot be read or written; what went before is recorded.
    """
    gone: list[Gone] = []
    failed: list[RegistryError] = []
    for each in index.expendable(policy):
        try:
            if dry_run:
                nbytes = size(store, each.digest)
                if not store.contains(each.digest):
                    continue
            else:
                nbytes = remove(
                    store, index, each.digest, now=now, who=who, reason=str(policy), overrides=policy.overrides
                ).bytes
        except (Conflict, NotFound):  # an alias or a score came meanwhile, or somebody else removed it
            continue
        except RegistryError as error:
            failed.append(error)
            continue
        gone.append(Gone(each.digest, each.run, each.iteration, nbytes))
    return Collected(tuple(gone), tuple(failed))
