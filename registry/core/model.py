"""The values that travel between layers: a LoRA, the checkpoint it was read from, and what the registry knows of an
adapter. Frozen, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from registry.core.digest import Digest
from registry.core.tensor import Tensor

if TYPE_CHECKING:
    from registry.core.contents import PeftAdapter

PEFT_PREFIX = "base_model.model."
"""What peft puts before the name of every module."""
_BEYOND_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """What decides, beside the tensors, which function an adapter computes: delta = scale * B @ A per module.

    Attributes:
        r: rank of the modules that `rank_pattern` does not name.
        alpha: numerator of the scale for the modules that `alpha_pattern` does not name; never zero.
        use_rslora: scale is alpha / sqrt(r) instead of alpha / r.
        rank_pattern, alpha_pattern: module name or regular expression to value, resolved as peft resolves them.
        fan_in_fan_out: the base stores its weights transposed (GPT-2's Conv1D).
    """

    r: int
    alpha: int | float
    use_rslora: bool = False
    rank_pattern: tuple[tuple[str, int], ...] = ()
    alpha_pattern: tuple[tuple[str, int | float], ...] = ()
    fan_in_fan_out: bool = False

    def function(self) -> dict[str, Any]:
        """The settings under peft's names, defaults left out: part of an adapter's identity (DESIGN 4.2)."""
        values: dict[str, Any] = {"r": self.r, "lora_alpha": self.alpha}
        if self.use_rslora:
            values["use_rslora"] = True
        if self.rank_pattern:
            values["rank_pattern"] = dict(self.rank_pattern)
        if self.alpha_pattern:
            values["alpha_pattern"] = dict(self.alpha_pattern)
        if self.fan_in_fan_out:
            values["fan_in_fan_out"] = True
        return values


@dataclass(frozen=True, slots=True, eq=False)
class LoraPair:
    """The two factors of one module: `a` has shape [r, in], `b` has shape [out, r]."""

    module: str
    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        """The rank that the shapes show."""
        return self.a.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """A whole LoRA: settings, and one pair per module, sorted by module name."""

    settings: LoraSettings
    pairs: tuple[LoraPair, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all factors."""
        return sum(pair.a.nbytes + pair.b.nbytes for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """Where a checkpoint's manifest stands and what it says of the tensor file."""

    name: str
    digest: Digest
    expected: Digest


@dataclass(frozen=True, slots=True)
class Parent:
    """The adapter that a run started from, as the user says: by its digest, and by that of its tensors."""

    digest: Digest
    tensors: Digest


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a checkpoint came from, as far as the checkpoint, its run's config and the user say so.

    `warm_start_source` is `config` or `option`, None where nothing is stated. `trained_on` is the base that the
    adapter's own config names, where that is not `base`: a quantised one, mostly.
    """

    run: str | None = None
    iteration: int | None = None
    base: str | None = None
    base_revision: str | None = None
    warm_start: Digest | None = None
    resumed_from: Digest | None = None
    stochastic_rounding: bool | None = None
    config: Digest | None = None
    trained_on: str | None = None
    warm_start_source: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """One checkpoint, read once.

    Attributes:
        path: absolute path of the file that holds the tensors, or of the directory of several.
        digest: sha256 of that file's bytes, or of the list of several: the checkpoint digest.
        size: the length in bytes of all of them.
        reader: name of the reader that understood it.
        manifest: the manifest entry it was checked against, or None where there was no manifest.
        lora: the LoRA in it.
        alpha_source: `checkpoint`, `config` or `option`.
        provenance: run, iteration, base and parents.
        stripped: wrapper prefixes that were removed from tensor names.
        aliases: pairs of tensor names that share one storage view.
        nonfinite: number of infinite or NaN elements in the tensors.
        zero_b: number of modules whose lora_B is all zeros.
        served: the directory in which the run keeps what its engines were served for this iteration, if there is one.
        warnings: what a person should know, a sentence each.
        peft: the adapter, where it was one already; None where one is to be made of `lora`.
    """

    path: str
    digest: Digest
    size: int
    reader: str
    manifest: ManifestEntry | None
    lora: Lora
    alpha_source: str
    provenance: Provenance
    stripped: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    nonfinite: int = 0
    zero_b: int = 0
    served: str | None = None
    warnings: tuple[str, ...] = ()
    peft: PeftAdapter | None = None

    @property
    def modules(self) -> int:
        """How many modules have factors."""
        return len(self.lora.pairs if self.peft is None else self.peft.contents.modules)


class RunCheckpoint(NamedTuple):
    """A checkpoint in a run's directory: its own directory, and the step that its name states."""

    path: str
    step: int


class ReadOptions(TypedDict, total=False):
    """What the user may say about a checkpoint.

    alpha: lora_alpha, where neither the checkpoint nor its run's config states it; refused where it contradicts them.
    run: the run's name, where its config states none; refused where it contradicts it.
    base: the base's name, recorded instead of the config's; or a path to its weights, recorded where there is no name.
    allow_nonfinite: accept infinite and NaN elements, which are counted either way.
    progress: called while the file is read, with the bytes read since the last call and the file's size.
    """

    alpha: float | None
    run: str | None
    base: str | None
    allow_nonfinite: bool
    progress: Callable[[int, int], None] | None


def number(value: Any) -> int | float | None:
    """`value` if it is a number (booleans are not), with 32.0 as 32, so that the two are one; else None.

    None too for NaN, infinities, and what no 64-bit integer holds, which JSON readers and the index would not keep.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _BEYOND_INT64:
        return None
    return int(value) if value == int(value) else value
