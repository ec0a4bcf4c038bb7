"""What inference engines make of an adapter: what they refuse, and what they load as another function.

Facts about the engines' own code, as of November 2026: vLLM's `lora/peft_helper.py`, `lora/utils.py` and
`lora_model.py`; SGLang's `lora/lora_config.py` and `lora_manager.py`. Where versions differ, the strictest counts. What
an engine cannot know either, as whether its base is the right one, is not told here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

from registry.core.contents import AdapterContents
from registry.core.errors import Refused, shown
from registry.core.patterns import rank_of, scale_of
from registry.core.peft_config import beyond, is_residual
from registry.core.peft_tensors import NOT_SELECTED

VLLM_MAX_RANK = 16
"""The highest rank that vLLM allows where it is not started with `--max-lora-rank`."""
_SHOWN = 3


class Engine(StrEnum):
    """What loads an adapter."""

    VLLM = "vllm"
    SGLANG = "sglang"
    PEFT = "peft"

    @classmethod
    def of(cls, name: str) -> Engine:
        """The engine of that name.

        Raises:
            Refused: there is none.
        """
        try:
            return cls(name)
        except ValueError as error:
            raise Refused("no engine of this name is known", key=name, expected=", ".join(cls)) from error


class Harm(StrEnum):
    """What comes of it: the engine does not load it; it loads it and computes another function; nobody here knows."""

    REFUSED = "refused"
    ALTERED = "altered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Unfit:
    """One thing in an adapter that an engine does not do as peft does.

    Attributes:
        harm: what comes of it.
        what: the setting or the tensors.
        why: what the engine does, a clause.
    """

    harm: Harm
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Fitness:
    """Whether an engine computes the adapter's function.

    Attributes:
        engine: which one.
        max_lora_rank: the highest rank of any module, which the engine must be started to allow.
        unfit: all that speaks against it.
    """

    engine: Engine
    max_lora_rank: int
    unfit: tuple[Unfit, ...]

    def reasons(self) -> str:
        """All that speaks against it, on one line."""
        return "; ".join(f"{each.what}: {each.why}" for each in self.unfit)


def fitness(contents: AdapterContents, engine: Engine, max_rank: int | None = None) -> Fitness:
    """Hold an adapter against what is known of an engine, which was started to allow ranks up to `max_rank`."""
    rank = _highest_rank(contents)
    unfit = list(_RULES[engine](contents))
    if max_rank is not None and rank > max_rank and engine is not Engine.PEFT:
        unfit.append(Unfit(Harm.REFUSED, f"rank {rank}", f"{engine} was started with a highest rank of {max_rank}"))
    return Fitness(engine, rank, tuple(unfit))


def _highest_rank(contents: AdapterContents) -> int:
    settings = contents.lora.settings
    ranks = [pair.rank for pair in chain(contents.lora.pairs, contents.embeddings)]
    return max(ranks + [rank_of(name.rpartition(".")[0], settings) for name in contents.packed])


def _vllm(contents: AdapterContents) -> Iterator[Unfit]:
    config = contents.config
    if contents.magnitudes:
        yield Unfit(Harm.REFUSED, "use_dora", "vLLM does not load DoRA")
    if config.get("modules_to_save"):
        yield Unfit(Harm.REFUSED, f"modules_to_save {shown(config['modules_to_save'])}", "vLLM takes no whole modules")
    if config.get("bias", "none") != "none":
        yield Unfit(Harm.REFUSED, f"bias {shown(config['bias'])}", "vLLM takes no biases")
    others = _others(contents)
    if others and not config.get("modules_to_save"):
        yield Unfit(Harm.REFUSED, _few(others), "vLLM takes no tensors but lora_A and lora_B")
    if contents.embeddings:
        yield Unfit(
            Harm.REFUSED, _few({pair.module for pair in contents.embeddings}), "vLLM takes no LoRA on embeddings"
        )
    uneven = _uneven(contents)
    if uneven:
        why = "vLLM scales all modules by the one alpha/r of the config"
        yield Unfit(Harm.ALTERED, f"rank_pattern or alpha_pattern, at {_few(uneven)}", why)
    yield from _same_in_both(contents, "vLLM")


def _sglang(contents: AdapterContents) -> Iterator[Unfit]:
    config = contents.config
    if contents.magnitudes:
        yield Unfit(
            Harm.REFUSED, "use_dora", "SGLang does not compute DoRA, and older versions leave the magnitudes out"
        )
    if contents.lora.settings.use_rslora:
        yield Unfit(Harm.ALTERED, "use_rslora", "SGLang scales by alpha/r, which is sqrt(r) too weak")
    if isinstance(config.get("target_modules"), str) and config["target_modules"] != "all-linear":
        yield Unfit(Harm.REFUSED, f"target_modules {shown(config['target_modules'])}", "SGLang takes a list of names")
    others = _others(contents)
    if others:
        yield Unfit(Harm.ALTERED, _few(others), "SGLang leaves out tensors but lora_A and lora_B")
    if contents.embeddings:
        what = _few({pair.module for pair in contents.embeddings})
        yield Unfit(Harm.UNKNOWN, what, "not every version of SGLang takes a LoRA on embeddings")
    settings = contents.lora.settings
    overrides = {key for key, value in settings.rank_pattern if value != settings.r}
    overrides |= {key for key, value in settings.alpha_pattern if value != settings.alpha}
    if overrides:
        why = "SGLang takes one r and one alpha, and older versions apply them to all modules"
        yield Unfit(Harm.REFUSED, f"rank_pattern or alpha_pattern, for {_few(overrides)}", why)
    yield from _same_in_both(contents, "SGLang")


def _peft(contents: AdapterContents) -> Iterator[Unfit]:
    if is_residual(contents.config):
        yield _residual(contents)


def _others(contents: AdapterContents) -> set[str]:
    """The tensors that are no factors, and no magnitudes."""
    return {*contents.replaced, *contents.biases, *contents.lora_biases, *contents.rest}


def _uneven(contents: AdapterContents) -> set[str]:
    """The modules that the one scale of r and alpha is not right for."""
    settings = contents.lora.settings
    plain = scale_of("", replace(settings, alpha_pattern=()), settings.r)
    pairs = chain(contents.lora.pairs, contents.embeddings)
    return {pair.module for pair in pairs if scale_of(pair.module, settings, pair.rank) != plain}


def _same_in_both(contents: AdapterContents, engine: str) -> Iterator[Unfit]:
    if contents.packed:
        packed = {name.rpartition(".")[0] for name in contents.packed}
        yield Unfit(Harm.UNKNOWN, f"target_parameters, at {_few(packed)}", f"not every version of {engine} takes them")
    if is_residual(contents.config):
        yield _residual(contents)
    left_out = [each for each in contents.unsupported if each.startswith(NOT_SELECTED)]
    if left_out:
        yield Unfit(Harm.ALTERED, _few(set(left_out)), f"peft passes them over, and {engine} applies them")
    for key, value in sorted(beyond(contents.config).items()):
        yield Unfit(Harm.UNKNOWN, f"{key} {shown(value)}", f"nothing is known here of {engine} doing this")


def _residual(contents: AdapterContents) -> Unfit:
    what = f"init_lora_weights {shown(contents.config['init_lora_weights'])}"
    return Unfit(Harm.ALTERED, what, "relative to what that initialisation left of the base, and not to the base")


def _few(names: set[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{', '.join(listed[:_SHOWN])}{more}"


_RULES: dict[Engine, Callable[[AdapterContents], Iterator[Unfit]]] = {
    Engine.VLLM: _vllm,
    Engine.SGLANG: _sglang,
    Engine.PEFT: _peft,
}
