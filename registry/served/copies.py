"""An engine's copy of one or more base tensors, held against them block by block while they pass."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from registry.core.comparison import State
from registry.disk.safetensors import read_range
from registry.served.evidence import Listed
from registry.served.parts import Block, Part, Workspace
from registry.served.tally import Tally
from registry.served.tensors import as_tensor, bytes_of
from registry.served.weights import Stored

if TYPE_CHECKING:
    from hashlib import _Hash


@dataclass(frozen=True, slots=True)
class PartResult:
    """One base tensor in a copy; `tally` is None where it is not targeted, or where `why` says why there is none."""

    part: str
    state: State
    elements: int
    tally: Tally | None
    why: str | None = None


class Copy(Protocol):
    """A copy that is being held against base tensors, the rows of one after those of the other."""

    def begin(self, part: Part) -> None:
        """The blocks of this base tensor come next."""
        ...

    def add(self, block: Block) -> None:
        """The next block."""
        ...

    def finish(self) -> tuple[str, tuple[PartResult, ...]]:
        """The copy's sha256, and what was found for each base tensor."""
        ...


class SeenCopy:
    """A copy whose bytes are at hand."""

    def __init__(self, stored: Stored, workspace: Workspace) -> None:
        self._stored, self._workspace = stored, workspace
        self._offset = stored.entry.start
        self._hasher = hashlib.sha256()
        self._parts: list[tuple[Part, Tally]] = []

    def begin(self, part: Part) -> None:
        self._parts.append((part, Tally(part.is_targeted)))

    def add(self, block: Block) -> None:
        part, tally = self._parts[-1]
        dtype = self._stored.entry.dtype
        buffer = self._workspace.buffer("served", block.base.numel() * dtype.itemsize)
        read_range(self._stored.file, self._offset, buffer)
        self._offset += len(buffer)
        self._hasher.update(buffer)
        if dtype is part.dtype:
            tally.add(block, as_tensor(buffer, dtype, tuple(block.base.shape)).to(self._workspace.device))

    def finish(self) -> tuple[str, tuple[PartResult, ...]]:
        return self._hasher.hexdigest(), tuple(self._result(part, tally) for part, tally in self._parts)

    def _result(self, part: Part, tally: Tally) -> PartResult:
        if self._stored.entry.dtype is not part.dtype:
            return unlike(part, f"served as {self._stored.entry.dtype}, the base is {part.dtype}")
        return PartResult(part.name, tally.state(), tally.elements, tally if part.is_targeted else None)


class ListedCopy:
    """A copy of which only the digest is known: it is the merge's, the base's, or of something nobody can look at."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._parts: list[tuple[Part, Tally, Tally]] = []
        self._as_merge: _Hash = hashlib.sha256()
        self._as_base: _Hash = hashlib.sha256()

    def begin(self, part: Part) -> None:
        self._parts.append((part, Tally(part.is_targeted), Tally(part.is_targeted)))

    def add(self, block: Block) -> None:
        _, as_merge, as_base = self._parts[-1]
        merged = block.base if block.merged is None else block.merged
        self._as_merge.update(block.raw if block.merged is None else bytes_of(merged.cpu()))
        self._as_base.update(block.raw)
        as_merge.add(block, merged)
        as_base.add(block, block.base)

    def finish(self) -> tuple[str, tuple[PartResult, ...]]:
        sha256 = self._listed.digest.hex
        if sha256 == self._as_merge.hexdigest():
            found = [(part, as_merge) for part, as_merge, _ in self._parts]
        elif sha256 == self._as_base.hexdigest():
            found = [(part, as_base) for part, _, as_base in self._parts]
        else:
            parts = [part for part, _, _ in self._parts]
            targeted = [part for part in parts if part.is_targeted]
            return sha256, tuple(unlike(part) for part in targeted or parts)  # of the others nothing can be told
        return sha256, tuple(
            PartResult(part.name, tally.state(), tally.elements, tally if part.is_targeted else None)
            for part, tally in found
        )


def unlike(part: Part, why: str = "neither the merge's digest nor the base's") -> PartResult:
    """The result for a copy that is of another type, or of unknown bytes: not the base, and not the merge."""
    return PartResult(part.name, State.DIFFERENT if part.is_targeted else State.ALTERED, part.numel, None, why)
