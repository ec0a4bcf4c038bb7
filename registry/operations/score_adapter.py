"""Which adapter a score run used: what its files and the user say of it, held against one another.

A digest always means the same adapter. An alias or `RUN@latest` in a file meant one adapter when the score run read it
and may mean another one now: it tells the adapter only if it cannot have been another, and else only confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from registry.core import refs
from registry.core.digest import Digest
from registry.core.errors import Ambiguous, InvalidReference, NotFound, Refused, RegistryError
from registry.core.refs import AliasName, Prefix, Reference, RunIteration
from registry.operations.resolve import resolve
from registry.operations.score_files import Named
from registry.store import Store

if TYPE_CHECKING:
    from registry.index import Index

OPTION = "option"
_LONGEST = 1024  # characters of a reference in a file
_SHOWN = 80
_GIVE_DIGEST = "Give the adapter's digest with --adapter"
_ADD_FIRST = "Add its checkpoint first, with `aorlta-reg add`"

OpenIndex = Callable[[], "Index | None"]
_Error = TypeVar("_Error", Refused, NotFound)


@dataclass(frozen=True, slots=True)
class _Claim:
    """What one source says.

    Attributes:
        named: the source.
        adapter: the only one it can have meant; None where there is no such one.
        allows: whether it can have meant this one.
        doubt: why it does not tell the adapter by itself.
    """

    named: Named
    adapter: Digest | None
    allows: Callable[[Digest], bool]
    doubt: RegistryError | None = None


def adapter_of(
    store: Store, result: str, named: Iterable[Named], given: Digest | None, index: OpenIndex
) -> tuple[Digest, tuple[str, ...]]:
    """The adapter that a score run used, and which sources name it: all that there are must agree.

    Args:
        store: where the adapter lies.
        result: path of the score run's result, for messages.
        named: what its files say.
        given: what the user says.
        index: gives the index, for aliases and RUN@ITER only; None where there is no registry.

    Raises:
        Refused: nobody names an adapter, two name different ones, or what they say may have changed its meaning.
        NotFound: the adapter, or what a file calls it, is not known here.
        Ambiguous: what a file says fits several adapters, and nothing else tells which.
    """
    claims = [_claim(store, each, index) for each in named]
    if given is not None:
        claims.append(_exactly(Named(OPTION, "", "--adapter", str(given)), given))
    if not claims:
        hint = "Name it with --adapter"
        raise Refused("says nowhere which adapter the score run used", path=result, key="model.adapter", hint=hint)
    certain = [(claim, claim.adapter) for claim in claims if claim.adapter is not None]
    if not certain:
        raise next(claim.doubt for claim in claims if claim.doubt is not None)
    first, adapter = certain[0]
    for claim, other in certain:
        if other != adapter:
            raise _differ("names another adapter", claim, first, adapter)
    if not store.contains(adapter):
        raise NotFound("no such adapter in the store", path=result, key=str(adapter), hint=_ADD_FIRST)
    for claim in claims:
        if not claim.allows(adapter):
            raise _differ("is not known ever to have named the same adapter", claim, first, adapter)
    return adapter, tuple(dict.fromkeys(claim.named.by for claim in claims))


def _exactly(named: Named, adapter: Digest) -> _Claim:
    return _Claim(named, adapter, lambda other: other == adapter)


def _claim(store: Store, named: Named, index: OpenIndex) -> _Claim:
    match _parsed(named):
        case Digest() as digest:
            return _exactly(named, digest)
        case AliasName() as name:
            return _of_alias(named, name, index)
        case RunIteration(_, None) as run:
            return _Claim(named, None, _exported_by(run, index), _may_have_moved(named, _shown(named)))
        case RunIteration() as run:
            return _found(store, named, index, _exported_by(run, index))
        case Prefix() as prefix:
            return _found(store, named, index, lambda adapter: adapter.hex.startswith(prefix.hex))


def _parsed(named: Named) -> Reference:
    if len(named.text) > _LONGEST:
        raise _at(named, Refused, "not a reference", found=f"{len(named.text)} characters")
    try:
        return refs.parse(named.text)
    except (InvalidReference, NotFound) as error:
        hint = "It takes a digest, an alias or RUN@ITER"
        raise _at(named, Refused, "not a reference", found=repr(named.text[:_SHOWN]), hint=hint) from error


def _found(store: Store, named: Named, index: OpenIndex, allows: Callable[[Digest], bool]) -> _Claim:
    """Of a reference that does not move: the adapter that it names today, if that is one."""
    try:
        return _Claim(named, resolve(store, named.text, index), allows)
    except NotFound as error:
        doubt: RegistryError = _at(named, NotFound, error.problem, found=_shown(named), hint=_ADD_FIRST)
    except Ambiguous as error:
        doubt = Ambiguous(error.problem, candidates=error.candidates, path=named.path, key=named.key, hint=_GIVE_DIGEST)
    return _Claim(named, None, allows, doubt)


def _of_alias(named: Named, name: AliasName, index: OpenIndex) -> _Claim:
    """An alias that has only ever named one adapter meant that one."""
    opened = index()
    moves = [] if opened is None else opened.alias_history(name)
    meant = {move.after for move in moves if move.name == name.name and move.after is not None}
    if len(meant) == 1:
        return _exactly(named, meant.pop())
    if meant:
        doubt: RegistryError = _may_have_moved(named, f"{name.name}, which has named {len(meant)} adapters")
    else:
        doubt = _at(named, NotFound, "no alias has this name", found=_shown(named), hint=_GIVE_DIGEST)
    return _Claim(named, None, meant.__contains__, doubt)


def _exported_by(run: RunIteration, index: OpenIndex) -> Callable[[Digest], bool]:
    def is_exported(adapter: Digest) -> bool:
        opened = index()
        found = None if opened is None else opened.adapter(adapter)
        return found is not None and any(
            export.run == run.run and run.iteration in (None, export.iteration) for export in found.exports
        )

    return is_exported


def _may_have_moved(named: Named, found: str) -> Refused:
    return _at(named, Refused, "may have moved since the score run read it", found=found, hint=_GIVE_DIGEST)


def _differ(problem: str, claim: _Claim, first: _Claim, adapter: Digest) -> Refused:
    where = f"{first.named.path}: {first.named.key}" if first.named.path else first.named.key
    expected = f"{adapter}, as {where} says"
    return _at(claim.named, Refused, problem, found=_shown(claim.named), expected=expected)


def _at(named: Named, kind: type[_Error], problem: str, **facts: str) -> _Error:
    return kind(problem, path=named.path or None, key=named.key, **facts)


def _shown(named: Named) -> str:
    said = named.text.strip()
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."
