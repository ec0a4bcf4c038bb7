"""What a merge will do to every tensor of a base, worked out before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from registry.core.contents import AdapterContents
from registry.core.dtypes import LORA_DTYPES
from registry.core.model import LoraPair
from registry.core.patterns import scale_of
from registry.core.tensor import Tensor
from registry.disk.safetensors import Entry
from registry.served.changes import BiasChange, Change, DoraChange, LoraChange, ReplaceChange
from registry.served.names import EXACT, WEIGHT, Renaming, bare, match_modules
from registry.served.tied import Tie, find_tie, read_config
from registry.served.weights import Weights

_CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp")  # no set: a config may say anything
_EXPERT = re.compile(r"(.*\bexperts)\.\d+\..+")
_STACKED = 3  # dimensions of a tensor that holds all experts


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The merge of one adapter into one base.

    Attributes:
        changes: what happens to which tensor; all others stay.
        added: tensors that the base's files do not have, to the base tensor that each one starts as a copy of: one half
            of a tied pair that must be stored by itself now.
        untied: the pair that the base ties and the merged model cannot.
        unmatched: modules and tensors of the adapter that the base does not have.
        unsupported: what else of the adapter is not followed, each named.
        prefix: how the adapter's names became the base's.
    """

    changes: Mapping[str, Change]
    added: Mapping[str, str]
    untied: Tie | None
    unmatched: tuple[str, ...]
    unsupported: tuple[str, ...]
    prefix: Renaming

    def source(self, name: str) -> str:
        """The base tensor that the tensor `name` of the merged model is made from."""
        return self.added.get(name, name)


@dataclass(slots=True)
class _Draft:
    entries: Mapping[str, Entry]
    changes: dict[str, Change] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)


def plan(contents: AdapterContents, base: Weights) -> Plan:
    """Match an adapter with a base. Reads the base's config.json and no tensor.

    Raises:
        UnsupportedLora: not one module of the adapter is in the base.
        MalformedFile: the base's config.json is damaged.
    """
    config = read_config(base.path)
    tie = find_tie(base.tensors.keys(), config)
    entries = {name: base.entry(name) for name in base.tensors}
    if tie is not None:
        entries.setdefault(tie.head, entries[tie.embedding])
    draft = _Draft(entries, unsupported=[*contents.unsupported, *(f"tensor {key}" for key in contents.unknown)])
    prefix = _add_pairs(draft, contents, config)
    _add_replacements(draft, contents, prefix)
    _add_biases(draft, contents, prefix)
    touched = tie is not None and not {tie.embedding, tie.head}.isdisjoint(draft.changes)
    added = {tie.head: tie.embedding} if tie is not None and touched and tie.head not in base.tensors else {}
    return Plan(
        changes=draft.changes,
        added=added,
        untied=tie if touched else None,
        unmatched=tuple(draft.unmatched),
        unsupported=tuple(draft.unsupported),
        prefix=prefix,
    )


def _add_pairs(draft: _Draft, contents: AdapterContents, config: Mapping[str, Any]) -> Renaming:
    settings = contents.lora.settings
    experts = _fused_experts(contents, draft.entries)
    draft.unsupported += [f"{module}: a LoRA on one expert, and the base holds all in one tensor" for module in experts]
    modules = [pair.module for pair, _ in _all_pairs(contents) if pair.module not in experts]
    if not modules:
        return EXACT
    matched = match_modules(modules, draft.entries)
    draft.unmatched += matched.unmatched
    conv1d = settings.fan_in_fan_out or config.get("model_type") in _CONV1D
    for pair, is_embedding in _all_pairs(contents):
        name = matched.names.get(pair.module)
        if name is None:
            continue
        entry = draft.entries[name]
        transposed = _transposed(pair, entry.shape, preferred=is_embedding or conv1d)
        if transposed is None or (is_embedding and not transposed):
            draft.unsupported.append(_misfit(pair, entry))
        elif entry.dtype not in LORA_DTYPES:
            draft.unsupported.append(f"{name}: a LoRA on {entry.dtype} weights (quantised?)")
        else:
            scale = scale_of(pair.module, settings, pair.rank)
            magnitude = contents.magnitudes.get(pair.module)
            draft.changes[name] = (
                LoraChange(pair, scale, transposed)
                if magnitude is None
                else DoraChange(pair, scale, transposed, magnitude)
            )
    return matched.prefix


def _fused_experts(contents: AdapterContents, entries: Mapping[str, Entry]) -> dict[str, None]:
    """The modules that are one expert's, where the base has one tensor for all experts of a layer, in order."""
    stacked = [name.removesuffix(WEIGHT) for name, entry in entries.items() if len(entry.shape) == _STACKED]
    fused = {bare(name.rpartition(".")[0]) for name in stacked}
    found = ((pair.module, _EXPERT.fullmatch(pair.module)) for pair in contents.lora.pairs)
    return {module: None for module, expert in found if expert is not None and bare(expert[1]) in fused}


def _all_pairs(contents: AdapterContents) -> Iterator[tuple[LoraPair, bool]]:
    yield from ((pair, False) for pair in contents.lora.pairs)
    yield from ((pair, True) for pair in contents.embeddings)


def _transposed(pair: LoraPair, shape: tuple[int, ...], *, preferred: bool) -> bool | None:
    """Whether the base stores this weight [in, out]; None where it fits neither way.

    The layer decides, not the adapter's config: peft too corrects `fan_in_fan_out` by the layer it finds. A shape shows
    what the layer is unless it is square.
    """
    out_in = (pair.b.shape[0], pair.a.shape[1])
    ways = [transposed for transposed in (False, True) if shape == (out_in[::-1] if transposed else out_in)]
    if preferred in ways:
        return preferred
    return ways[0] if ways else None


def _misfit(pair: LoraPair, entry: Entry) -> str:
    expected = [pair.b.shape[0], pair.a.shape[1]]
    return f"{entry.name}: shape {list(entry.shape)} in the base against {expected} (out, in) in the adapter"


def _add_replacements(draft: _Draft, contents: AdapterContents, prefix: Renaming) -> None:
    for saved, tensor in sorted({**contents.replaced, **contents.biases}.items()):
        name = prefix(saved)
        if not _fits(draft, saved, name, tensor):
            continue
        match draft.changes.get(name):
            case LoraChange() | DoraChange() as then:
                draft.changes[name] = ReplaceChange(tensor, then)
            case _:
                draft.changes[name] = ReplaceChange(tensor)


def _add_biases(draft: _Draft, contents: AdapterContents, prefix: Renaming) -> None:
    settings = contents.lora.settings
    ranks = {pair.module: pair.rank for pair in contents.lora.pairs}
    for module, bias in sorted(contents.lora_biases.items()):
        name = f"{prefix(module)}.bias"
        if module not in ranks or name in draft.changes:
            draft.unsupported.append(f"{module}.lora_B.bias")
        elif _fits(draft, f"{module}.bias", name, bias):
            draft.changes[name] = BiasChange(module, bias, scale_of(module, settings, ranks[module]))


def _fits(draft: _Draft, saved: str, name: str, tensor: Tensor) -> bool:
    entry = draft.entries.get(name)
    if entry is None:
        draft.unmatched.append(saved)
        return False
    if entry.shape != tensor.shape:
        draft.unsupported.append(
            f"{name}: shape {list(tensor.shape)} in the adapter against {list(entry.shape)} in the base"
        )
        return False
    if not entry.shape or entry.dtype not in LORA_DTYPES or tensor.dtype not in LORA_DTYPES:
        draft.unsupported.append(
            f"{name}: {tensor.dtype} in the adapter for {entry.dtype} {list(entry.shape)} in the base"
        )
        return False
    return True
