"""verl's checkpoint without an adapter: model_world_size_<W>_rank_<R>.pt, one file a rank, of DTensors. Joined where
every rank is there and each element of every LoRA tensor is, once; refused else.

It is known by the sha256 of the list that `sha256sum model_world_size_*.pt` prints, sorted by rank.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Unpack

from registry.checkpoints import checks, facts, layouts
from registry.checkpoints.joining import Piece, join
from registry.checkpoints.lora_keys import find_lora
from registry.checkpoints.pickled import Distributed, TensorRef
from registry.checkpoints.torchfile import open_torch_file
from registry.core.digest import Digest
from registry.core.dtypes import DType
from registry.core.errors import NotFound, Refused, UnsupportedLora
from registry.core.model import Checkpoint, Lora, LoraPair, Parent, Provenance, ReadOptions, RunCheckpoint
from registry.core.tensor import Tensor, contiguous_strides, is_zero

NAME = "verl-shards"
LOOKS_FOR = "model_world_size_*_rank_*.pt"
_FILE = re.compile(r"model_world_size_(?P<world>[1-9]\d{0,5})_rank_(?P<rank>0|[1-9]\d{0,5})\.pt")
_PLACES = ("", "actor")
_LISTED = 10
_TOOL = "Save again with every rank, or let `python -m verl.model_merger` join what it can"


class _Shards(NamedTuple):
    """The files of a checkpoint: their directory, and each world size with its ranks and their names."""

    directory: str
    worlds: dict[int, dict[int, str]]


def detects(path: str) -> bool:
    """Whether this is a checkpoint of shards, their directory or one of them, with no adapter beside them."""
    found = layouts.around(path)
    if found is not None and any(os.path.lexists(os.path.join(found.adapter, name)) for name in layouts.FILES):
        return False
    return _shards(path) is not None


def checkpoints(run: str) -> Iterator[RunCheckpoint]:
    """What of this kind a run's directory holds, finished or not, in no order."""
    for path, step in layouts.steps(run, "verl"):
        if detects(path):
            yield RunCheckpoint(path, step)


def lacks(path: str) -> str | None:
    """What a checkpoint still lacks before it may be read, by its names; None for nothing."""
    found = _shards(path)
    return layouts.lacks(path) or (None if found is None else _missing(found))


def files(path: str) -> list[str]:
    """The shards, by rank.

    Raises:
        Refused: some are missing, or they are of several saves.
    """
    return _by_rank(_require_shards(path))


def read(path: str, *, parent: Parent | None = None, **options: Unpack[ReadOptions]) -> Checkpoint:
    """Read a checkpoint, given as its directory, that of its shards, or one of them. Each is opened and read once.

    Raises:
        NotFound, Refused and its subclasses, StorageError.
    """
    checks.require_whole(layouts.lacks(path), path)
    shards = _require_shards(path)
    listed = _by_rank(shards)
    size = sum(os.path.getsize(file) for file in listed)
    pieces: list[dict[str, Piece]] = []
    digests: dict[str, Digest] = {}
    beside = 0
    for file in listed:
        read_pieces, digests[file], beside = _read_shard(file, size, options)
        pieces.append(read_pieces)
    joined = join(pieces, listed)
    refs = {key: _whole(key, tensor) for key, tensor in joined.items()}
    found = find_lora(refs, shards.directory)
    tensors = {refs[key]: tensor for key, tensor in joined.items()}
    lora_of = {pair.module: pair.a.shape[0] for pair in found.pairs}
    settings, alpha_source = facts.lora_settings(
        _sources(shards.directory), lora_of, options.get("alpha"), shards.directory
    )
    lora = Lora(settings, tuple(LoraPair(pair.module, tensors[pair.a], tensors[pair.b]) for pair in found.pairs))
    nonfinite = checks.nonfinite(
        sorted(joined.items()), shards.directory, allowed=options.get("allow_nonfinite", False)
    )
    zero_b = sum(is_zero(pair.b.contiguous()) for pair in lora.pairs)
    origin = _provenance(path, options, parent)
    return Checkpoint(
        path=shards.directory,
        digest=digest_of(digests),
        size=size,
        reader=NAME,
        manifest=None,
        lora=lora,
        alpha_source=alpha_source,
        provenance=origin,
        stripped=found.stripped,
        nonfinite=nonfinite,
        zero_b=zero_b,
        warnings=tuple(_warnings(lora, origin, len(listed), beside, nonfinite, zero_b)),
    )


def digest_of(digests: Mapping[str, Digest]) -> Digest:
    """What several files are known by: the sha256 of their list, a line each as `sha256sum` prints it.

    Args:
        digests: the sha256 of each by its path, in the order of the list.
    """
    lines = (f"{digest.hex}  {os.path.basename(path)}\n" for path, digest in digests.items())
    return Digest(hashlib.sha256("".join(lines).encode()).hexdigest())


def _shards(path: str) -> _Shards | None:
    directories = [os.path.join(path, place) if place else path for place in _PLACES]
    if _FILE.fullmatch(os.path.basename(path)) and not os.path.isdir(path):
        directories = [os.path.dirname(path)]
    for directory in directories:
        worlds: dict[int, dict[int, str]] = {}
        for match in filter(None, map(_FILE.fullmatch, layouts.names(directory))):
            worlds.setdefault(int(match["world"]), {})[int(match["rank"])] = match.string
        if worlds:
            return _Shards(directory, worlds)
    return None


def _missing(shards: _Shards) -> str | None:
    if len(shards.worlds) > 1:
        return f"shards of saves by {' and '.join(map(str, sorted(shards.worlds)))} ranks"
    ((world, ranks),) = shards.worlds.items()
    absent = [rank for rank in range(world) if rank not in ranks]
    if absent:
        more = ", ..." * (len(absent) > _LISTED)
        return f"no shard of {len(absent)} of {world} ranks: {', '.join(map(str, absent[:_LISTED]))}{more}"
    return f"a shard of rank {max(ranks)} of {world}" if max(ranks) >= world else None


def _by_rank(shards: _Shards) -> list[str]:
    ((_, ranks),) = shards.worlds.items()
    return [os.path.join(shards.directory, ranks[rank]) for rank in sorted(ranks)]


def _require_shards(path: str) -> _Shards:
    shards = _shards(path)
    if shards is None:
        raise NotFound("no shards", path=path)
    missing = _missing(shards)
    if missing is not None:
        raise Refused("not all of one sharded save", path=shards.directory, found=missing, hint=_TOOL)
    return shards


def _read_shard(file: str, size: int, options: ReadOptions) -> tuple[dict[str, Piece], Digest, int]:
    """The LoRA tensors of one rank by key, the file's digest, and how many other entries it has."""
    with open_torch_file(file) as opened:
        contents = facts.mapping(opened.contents)
        wanted = {key: value for key, value in contents.items() if isinstance(key, str) and ".lora_" in key}
        if not wanted:
            raise UnsupportedLora("no LoRA tensors", path=file, expected="keys like <module>.lora_A.default.weight")
        local = {key: _local(value, key, file) for key, value in wanted.items()}
        report = options.get("progress")
        progress = None if report is None else lambda count: report(count, size)
        digest, tensors = opened.read([value.local for value in local.values()], progress)
    pieces = {
        key: Piece(value.shape, value.shard, tensors[value.local], value.dtype.name) for key, value in local.items()
    }
    return pieces, digest, len(contents) - len(wanted)


class _Local(NamedTuple):
    shape: tuple[int, ...]
    shard: int | None
    local: TensorRef
    dtype: DType


def _local(value: object, key: str, file: str) -> _Local:
    """What one rank holds of a tensor; of a plain one, all."""
    if isinstance(value, TensorRef):
        return _Local(value.shape, None, value, value.dtype)
    if not isinstance(value, Distributed):
        found = getattr(value, "global_name", None) or type(value).__name__
        raise UnsupportedLora("a sharded tensor of another kind", path=file, key=key, found=found, expected="a DTensor")
    if len(value.placements) != 1 or value.placements[0].kind not in ("Shard", "Replicate"):
        kinds = ", ".join(placement.kind for placement in value.placements) or "none"
        raise UnsupportedLora(
            "a placement that is not joined", path=file, key=key, found=kinds, expected="Shard or Replicate, alone"
        )
    (placement,) = value.placements
    if placement.dim is not None and not 0 <= placement.dim < len(value.shape):
        raise UnsupportedLora("sharded along no dimension that it has", path=file, key=key, found=placement.dim)
    _require_rank(value, key, file)
    if value.local.dtype != value.dtype:
        raise UnsupportedLora("of two types", path=file, key=key, found=value.local.dtype, expected=value.dtype)
    return _Local(value.shape, placement.dim, value.local, value.dtype)


def _require_rank(value: Distributed, key: str, file: str) -> None:
    """Parts of one size fit in any order: only the mesh that each was saved with tells whose it is, not its name."""
    match = _FILE.fullmatch(os.path.basename(file))
    rank, world = (int(match["rank"]), int(match["world"])) if match else (0, 0)
    if value.coordinate != (rank,):
        found = "not said" if value.coordinate is None else f"rank {', '.join(map(str, value.coordinate))}"
        raise UnsupportedLora(
            "not of the rank that the file's name says",
            path=file,
            key=key,
            found=found,
            expected=f"rank {rank}",
            hint="Give each shard the name that it was saved under",
        )
    if value.ranks != tuple(range(world)):
        found = "not said" if value.ranks is None else f"{len(value.ranks)} ranks"
        raise UnsupportedLora(
            "split over other ranks than the file's name says",
            path=file,
            key=key,
            found=found,
            expected=f"{world} ranks in order",
        )


def _whole(key: str, tensor: Tensor) -> TensorRef:
    """A tensor as it would be in a file that is not sharded: its key stands for its storage."""
    return TensorRef(tensor.dtype, key, tensor.nbytes, 0, tensor.shape, contiguous_strides(tensor.shape))


def _sources(directory: str) -> list[facts.Source]:
    places = dict.fromkeys((directory, os.path.dirname(directory)))
    found = [stated[1] for place in places if (stated := layouts.verl_meta(place)) is not None]
    return [facts.Source(f"checkpoint {layouts.VERL_META}", each) for each in found or [{}]]


def _provenance(path: str, options: ReadOptions, parent: Parent | None) -> Provenance:
    run, base, _ = checks.stated_names(options)
    start, source = checks.agreed_start(None, parent, path, "")
    found = layouts.around(path)
    return Provenance(
        run=run,
        iteration=None if found is None else found.step,
        base=base,
        base_revision=None,
        warm_start=start,
        warm_start_source=source,
        resumed_from=None,
        stochastic_rounding=None,
        config=None,
    )


def _warnings(lora: Lora, origin: Provenance, ranks: int, beside: int, nonfinite: int, zero_b: int) -> Iterator[str]:
    yield f"joined from the shards of {ranks} ranks"
    yield from checks.zero_or_nonfinite(zero_b, len(lora.pairs), nonfinite)
    if beside:
        yield f"{beside} other entries of each shard are not part of the adapter"
    yield from checks.unmatched_patterns(lora.settings, (pair.module for pair in lora.pairs))
    if origin.base is None:
        yield checks.UNKNOWN_BASE
    if origin.run is None:
        yield checks.UNKNOWN_RUN
