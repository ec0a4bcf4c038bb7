"""What every reader asks of what it has read, and says of it in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from registry.core.digest import Digest
from registry.core.errors import Refused, UnsupportedLora, shown
from registry.core.model import LoraSettings, Parent, ReadOptions
from registry.core.patterns import matching
from registry.core.tensor import Tensor, count_nonfinite
from registry.disk import holds_safetensors

UNKNOWN_RUN = "the run is not known: give it with --run"
UNKNOWN_BASE = "the base is not known: give it with --base"


def require_whole(missing: str | None, path: str) -> None:
    """Refuse a checkpoint that still lacks something.

    Raises:
        Refused.
    """
    if missing is not None:
        hint = "Let the trainer finish it, then try again. If it never will, and you know it to be whole, add a copy"
        raise Refused("is not whole yet", path=path, found=missing, hint=hint)


def nonfinite(tensors: Iterable[tuple[str, Tensor]], path: str, *, allowed: bool) -> int:
    """How many elements of the named tensors are infinite or NaN.

    Raises:
        UnsupportedLora: there are some, and they are not allowed.
    """
    counts = {name: count for name, tensor in tensors if (count := count_nonfinite(tensor.contiguous(), tensor.dtype))}
    if counts and not allowed:
        key, count = next(iter(counts.items()))
        raise UnsupportedLora(
            f"{sum(counts.values())} elements in {len(counts)} tensors are infinite or NaN",
            path=path,
            key=key,
            found=f"{count} in this one",
            hint="The training run has probably diverged; --allow-nonfinite exports it all the same",
        )
    return sum(counts.values())


def zero_or_nonfinite(zero_b: int, modules: int, nonfinite: int) -> Iterator[str]:
    """A warning where every lora_B is zero, and one where elements are infinite or NaN."""
    if zero_b == modules:
        yield f"every lora_B is zero ({modules} of {modules}): this adapter changes nothing"
    if nonfinite:
        yield f"{nonfinite} elements are infinite or NaN"


def stated_names(options: ReadOptions) -> tuple[str | None, str | None, bool]:
    """The run and the base that the user named, and whether the base is a name, not a path to its weights.

    Raises:
        Refused: one of them is not printable.
    """
    run, base = options.get("run"), options.get("base")
    for name in (run, base):
        if name is not None and not name.isprintable():
            raise Refused("not a printable name", found=shown(name))
    return run, base, base is not None and not holds_safetensors(base)


def agreed_start(stated: Digest | None, parent: Parent | None, path: str, key: str) -> tuple[Digest | None, str | None]:
    """What the run started from, as a file states it at `key` and the user does, and who says so: `config` or `option`.

    Raises:
        Refused: they disagree. To state the tensors of what the user means is to agree.
    """
    if parent is None or stated == parent.digest:
        return stated, None if stated is None else "config"
    if stated not in (None, parent.tensors):
        raise Refused("the run's config states another start", path=path, key=key, found=stated, expected=parent.digest)
    return parent.digest, "option"


def unmatched_patterns(settings: LoraSettings, modules: Iterable[str]) -> Iterator[str]:
    """A warning for each pattern that means no module."""
    modules = list(modules)
    for name, pattern in (("rank_pattern", settings.rank_pattern), ("alpha_pattern", settings.alpha_pattern)):
        for key, _ in pattern:
            if not any(matching(module, ((key, None),)) for module in modules):
                yield f"{name} {key!r} matches no module"
