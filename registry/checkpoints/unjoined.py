"""Sharded saves that are not joined here, told by their files' names: what they are, which shards are missing as far as
names show, and which tool of their own project joins them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from registry.checkpoints.layouts import names
from registry.core.errors import Refused

_LISTED = 10


class _Kind(NamedTuple):
    """One kind of sharded save: its name, what its shards are called (`rank` is the number), and what joins them."""

    name: str
    shard: re.Pattern[str]
    beside: str | None
    joined_by: str


_KINDS = (
    _Kind(
        "a torch.distributed checkpoint",
        re.compile(r"__(?P<rank>\d{1,6})_\d{1,6}\.distcp"),
        ".metadata",
        "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE`",
    ),
    _Kind(
        "a DeepSpeed ZeRO checkpoint",
        re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d{1,6})_mp_rank_\d{1,6}_(?:optim|model)_states\.pt"),
        None,
        "DeepSpeed's zero_to_fp32.py",
    ),
)


def refusal(directories: Iterable[str]) -> Refused | None:
    """Why the first of these directories that holds such a save is refused; None where none does."""
    for directory in directories:
        listed = names(directory)
        for kind in _KINDS:
            ranks = {int(match["rank"]) for match in filter(None, map(kind.shard.fullmatch, listed))}
            if ranks:
                return Refused(
                    f"{kind.name} of {len(ranks)} shards, which are not joined here",
                    path=directory,
                    found=_missing(kind, ranks, listed),
                    hint=f"Join them with {kind.joined_by}, or save the adapter alone; add what that gives",
                )
    return None


def _missing(kind: _Kind, ranks: set[int], listed: list[str]) -> str | None:
    absent = [f"the shard of rank {rank}" for rank in range(max(ranks)) if rank not in ranks]
    if kind.beside is not None and kind.beside not in listed:
        absent.append(kind.beside)
    more = ", ..." * (len(absent) > _LISTED)
    return f"{', '.join(absent[:_LISTED])}{more} missing" if absent else None
