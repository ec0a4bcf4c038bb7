"""Serving: an adapter as one inference engine is to have it. What the engine would not do as peft does is refused; what
is changed is the name of the base alone, which is no part of the function."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.adapter.stored import read_adapter
from registry.core import jsontext
from registry.core.contents import AdapterContents
from registry.core.digest import Digest
from registry.core.engines import Engine, Fitness, fitness
from registry.core.errors import IntegrityError, Refused
from registry.core.layout import CONFIG, MANIFEST, WEIGHTS
from registry.operations import seal
from registry.store import Store

BASE = "base_model_name_or_path"
_HINT = "`aorlta-reg merge` makes a model of it, which any engine serves"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an adapter is handed out for.

    Attributes:
        engine: what is to load it; None for anything.
        base_name: what that engine calls the base; None for the name that the adapter has for it.
        max_rank: the highest rank that the engine was started to allow.
    """

    engine: Engine | None = None
    base_name: str | None = None
    max_rank: int | None = None


def wanted(engine: str | None, base_name: str | None, max_rank: int | None) -> Wanted | None:
    """What a person asked for, checked; None for nothing.

    Raises:
        Refused: no such engine, a name that is none, or no rank.
    """
    if base_name is not None and not (base_name.strip() and base_name.isprintable()):
        raise Refused("not the name of a base", key="base name", found=repr(base_name))
    if max_rank is not None and max_rank < 1:
        raise Refused("not a rank", key="max rank", found=max_rank)
    if max_rank is not None and engine is None:
        raise Refused("the highest rank is an engine's", key="max rank", hint=f"Say which: {', '.join(Engine)}")
    if engine is None and base_name is None:
        return None
    return Wanted(None if engine is None else Engine.of(engine), base_name, max_rank)


def fitnesses(store: Store, digest: Digest) -> tuple[Fitness, ...]:
    """What each engine makes of a stored adapter.

    Raises:
        NotFound, IntegrityError: it is missing or damaged.
    """
    contents = _contents(store, digest, _sealed(store, digest, CONFIG, seal.read_seal(store, digest).files))
    return tuple(fitness(contents, engine) for engine in Engine)


def adapted(store: Store, digest: Digest, files: Mapping[str, Digest], wish: Wanted) -> dict[str, bytes]:
    """The files of an adapter that are to be handed out otherwise than they are stored, by name; mostly none.

    Args:
        store: where it lies.
        digest: which one.
        files: the sha256 of each stored file.
        wish: what it is for.

    Raises:
        Refused: the engine would not load it, or would compute another function.
        NotFound, IntegrityError: it is missing or damaged.
    """
    config = _sealed(store, digest, CONFIG, files)
    if wish.engine is not None:
        found = fitness(_contents(store, digest, config), wish.engine, wish.max_rank)
        if found.unfit:
            raise Refused(f"not for {wish.engine}: {found.reasons()}", key=str(digest), hint=_HINT)
    stated = jsontext.parse(config, CONFIG)
    if wish.base_name is None or stated.get(BASE) == wish.base_name:
        return {}
    text = jsontext.pretty_in_order({**stated, BASE: wish.base_name})
    manifest: dict[str, Any] = jsontext.parse(_sealed(store, digest, MANIFEST, files), MANIFEST)
    change = {
        "config_sha256": hashlib.sha256(text).hexdigest(),
        BASE: {"from": stated.get(BASE), "to": wish.base_name},
    }
    return {CONFIG: text, MANIFEST: jsontext.pretty({**manifest, "adapted": change})}


def stated_base(store: Store, digest: Digest, files: Mapping[str, Digest]) -> object:
    """What an adapter's config calls its base. Raises as `adapted`."""
    return jsontext.parse(_sealed(store, digest, CONFIG, files), CONFIG).get(BASE)


def _sealed(store: Store, digest: Digest, name: str, files: Mapping[str, Digest]) -> bytes:
    """The bytes of a small stored file, which are what they must be."""
    data = seal.read(store, digest, name)
    actual = Digest(hashlib.sha256(data).hexdigest())
    if actual != files[name]:
        raise seal.mismatch(digest, name, actual, files[name])
    return data


def _contents(store: Store, digest: Digest, config: bytes) -> AdapterContents:
    """The adapter, by its file's header: whoever copies it finds out whether its bytes are right."""
    with seal.opened(store, digest, WEIGHTS) as file:
        try:
            return read_adapter(file, config)
        except Refused as error:  # what could not be read was never stored
            raise IntegrityError("a stored file is damaged", path=WEIGHTS, key=str(digest), hint=seal.REPAIR) from error
