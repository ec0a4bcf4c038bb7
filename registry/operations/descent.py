"""Descent: what a run started from, as the user says it, and that nothing comes to descend from itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.adapter import same_export
from registry.core.digest import Digest
from registry.core.errors import Conflict, IntegrityError, InvalidReference
from registry.core.model import Parent
from registry.operations import seal
from registry.operations.export import Export, manifest_of
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index


def parent_of(store: Store, digest: Digest) -> Parent:
    """A stored adapter as the parent of a run.

    Raises:
        NotFound: no such adapter.
        IntegrityError: its manifest or a record is damaged.
    """
    stated = seal.read_seal(store, digest).exports[0].predicate
    try:
        return Parent(digest, Digest(stated["adapter"]["tensor_digest"]))
    except (KeyError, TypeError, InvalidReference) as error:
        raise IntegrityError("its record states no tensor digest", key=str(digest), hint=seal.REPAIR) from error


def refuse_loop(store: Store, index: Index, new: Export) -> None:
    """See that neither what an export states as its run's start, nor its checkpoint, descends from its adapter.

    What is recorded already may stay.

    Raises:
        Conflict: it does.
        StorageError: the index cannot be read.
    """
    origin = new.checkpoint.provenance
    start = origin.warm_start
    above, before = index.stated_above(
        warm_start=None if start is None else start.hex,
        resumed_from=None if origin.resumed_from is None else origin.resumed_from.hex,
        run=origin.run,
        checkpoint=new.checkpoint.digest.hex,
    )
    adapter, tensors, checkpoint = new.digest.hex, new.tensors.hex, new.checkpoint.digest.hex
    came_of_it = start not in (new.digest, new.tensors)  # or the run began with this adapter
    if checkpoint not in above and not (came_of_it and {adapter, tensors} & (above | before)):
        return
    manifest = manifest_of(new, new.config, "")
    if any(same_export(known.predicate, manifest) for known in seal.exports(store, new.digest)):
        return
    raise Conflict(
        "what its run started from descends from this adapter",
        path=new.checkpoint.path,
        key=str(new.digest),
        found=f"a start from {start or origin.resumed_from or 'what was stated of this checkpoint before'}",
        hint="One of the stated starts is wrong: see `aorlta-reg lineage --up` of that",
    )
