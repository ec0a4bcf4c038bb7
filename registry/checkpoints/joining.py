"""Tensors that were split over ranks, put together again: only if each of their elements is there, once. Pure."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from registry.core.errors import UnsupportedLora
from registry.core.tensor import Tensor, contiguous_strides

_SHOWN = 3


class Piece(NamedTuple):
    """What one rank holds of a tensor.

    Attributes:
        shape: of the whole tensor.
        shard: the dimension that is split over the ranks; None where every rank holds all of it.
        tensor: the rank's part.
        dtype: the type's name.
    """

    shape: tuple[int, ...]
    shard: int | None
    tensor: Tensor
    dtype: str


def join(ranks: Sequence[Mapping[str, Piece]], files: Sequence[str]) -> dict[str, Tensor]:
    """The whole tensors by key.

    A dimension of n elements over W ranks is split as torch.chunk does it: ceil(n/W) for each rank, until none are left
    (the source is torch.distributed.tensor's Shard).

    Args:
        ranks: the pieces of each rank by key, in the order of ranks.
        files: where they are from, for messages.

    Raises:
        UnsupportedLora: ranks differ in what tensors they hold, or of which shape and type or how split; a part is of
            another size than its rank must have; or copies of one tensor differ.
    """
    keys = ranks[0].keys()
    for rank, file in zip(ranks, files, strict=True):
        if rank.keys() != keys:
            odd = sorted(rank.keys() ^ keys)
            raise UnsupportedLora(
                "the ranks do not hold the same tensors", path=file, found=", ".join(odd[:_SHOWN]), key=odd[0]
            )
    return {key: _joined(key, [rank[key] for rank in ranks], files) for key in sorted(keys)}


def _joined(key: str, pieces: Sequence[Piece], files: Sequence[str]) -> Tensor:
    first = pieces[0]
    for number, (piece, file) in enumerate(zip(pieces, files, strict=True)):
        stated = (piece.shape, piece.shard, piece.dtype)
        if stated != (first.shape, first.shard, first.dtype):
            raise UnsupportedLora("the ranks describe it differently", path=file, key=key, found=f"{stated}")
        wanted = _local_shape(first, number, len(pieces))
        if piece.tensor.shape != wanted:
            raise UnsupportedLora(
                "not the part that this rank must have",
                path=file,
                key=key,
                found=list(piece.tensor.shape),
                expected=list(wanted),
            )
    parts = [piece.tensor.contiguous() for piece in pieces]
    dtype, strides = first.tensor.dtype, contiguous_strides(first.shape)
    if first.shard is None:
        for part, file in zip(parts, files, strict=True):
            if part != parts[0]:
                raise UnsupportedLora(f"differs from the copy in {os.path.basename(files[0])}", path=file, key=key)
        return Tensor(dtype, first.shape, strides, parts[0])
    rows = math.prod(first.shape[: first.shard])
    whole = bytearray()
    steps = [len(part) // rows if rows else 0 for part in parts]
    for row in range(rows):
        for part, step in zip(parts, steps, strict=True):
            whole += part[row * step : (row + 1) * step]
    return Tensor(dtype, first.shape, strides, memoryview(whole))


def _local_shape(piece: Piece, rank: int, world: int) -> tuple[int, ...]:
    if piece.shard is None:
        return piece.shape
    size = piece.shape[piece.shard]
    chunk = -(-size // world)
    local = max(0, min(chunk, size - rank * chunk))
    return (*piece.shape[: piece.shard], local, *piece.shape[piece.shard + 1 :])
