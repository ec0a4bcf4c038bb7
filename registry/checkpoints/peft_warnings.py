"""What a person should know of a PEFT adapter that is accepted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from registry.checkpoints import checks
from registry.core.contents import AdapterContents, PeftAdapter
from registry.core.errors import shown
from registry.core.layout import MANIFEST, PICKLED, WEIGHTS
from registry.core.model import Provenance
from registry.core.patterns import ends_at_dots, starts_at_dots, words_of
from registry.core.peft_config import is_quantised

_MOST = 10
_PATHS = ("/", "./", "../", "~")
_EMBEDDINGS = frozenset({"embed_tokens", "lm_head"})


def warnings(
    peft: PeftAdapter, origin: Provenance, earlier: Mapping[str, Any] | None, nonfinite: int, path: str
) -> Iterator[str]:
    """A sentence each."""
    contents = peft.contents
    yield from peft.changes
    if path.endswith(WEIGHTS) and os.path.lexists(os.path.join(os.path.dirname(path), PICKLED)):
        yield f"{PICKLED} beside it was left out"
    yield from _zero(contents)
    if nonfinite:
        yield f"{nonfinite} elements are infinite or NaN"
    yield from _few(_beyond(contents), "more settings and tensors like these")
    yield from checks.unmatched_patterns(contents.lora.settings, contents.modules)
    yield from _few(_untouched(contents), "more names like these")
    yield from _base(origin)
    if earlier is None and os.path.lexists(os.path.join(os.path.dirname(path), MANIFEST)):
        yield f"{MANIFEST} beside it is of other bytes, and was left out"
    if origin.run is None:
        yield checks.UNKNOWN_RUN


def _zero(contents: AdapterContents) -> Iterator[str]:
    count = len(contents.modules)
    if not count or contents.zero_b != count:
        return
    others = contents.magnitudes or contents.lora_biases or contents.replaced or contents.biases or contents.rest
    effect = "only its other tensors can change anything" if others else "this adapter changes nothing"
    yield f"every lora_B is zero ({count} of {count}): {effect}"


def _beyond(contents: AdapterContents) -> Iterator[str]:
    """What engines refuse, or pass over, or what a merge here cannot follow."""
    if contents.magnitudes:
        yield "DoRA: vLLM refuses it, and engines without it would serve another function"
    if contents.config.get("modules_to_save"):
        saved = shown(contents.config["modules_to_save"])
        yield f"modules_to_save {saved}: vLLM refuses it; merging replaces the base's weights"
    for name, tensor in sorted(contents.replaced.items()):
        module, _, leaf = name.rpartition(".")
        if tensor.shape and leaf == "weight" and module.rpartition(".")[2] in _EMBEDDINGS:
            yield f"{name} of {tensor.shape[0]} rows is in the file as a whole: it takes the place of the base's"
    for pair in contents.embeddings:
        yield f"{pair.module}: a LoRA on an embedding of {pair.a.shape[1]} rows; the base's must have as many"
    for setting in contents.unsupported:
        yield f"not followed when merging here: {setting}"
    for key in contents.unknown:
        yield f"not followed when merging here: tensor {key}"


def _untouched(contents: AdapterContents) -> Iterator[str]:
    """Names in the config that no tensor answers to."""
    config, modules = contents.config, contents.modules
    targets = config.get("target_modules")
    if isinstance(targets, list):
        counts = Counter(end for module in modules for end in ends_at_dots(module))
        idle = sorted({target for target in targets if not counts[target]})
        told = ", ".join(f"{shown(target)} {counts[target]}" for target in sorted({*targets} - {*idle})[:_MOST])
        yield from (f"target_modules: {shown(target)} has no tensors (modules by target: {told})" for target in idle)
    owners = {owner for name in (*contents.replaced, *contents.biases) for owner in starts_at_dots(name)}
    saved = words_of(config.get("modules_to_save") or ())
    used = {word for owner in owners for word in saved.ending(owner)}
    for each in config.get("modules_to_save") or ():
        if each not in used:
            yield f"modules_to_save: {shown(each)} has no tensors"


def _base(origin: Provenance) -> Iterator[str]:
    if origin.base is None:
        yield checks.UNKNOWN_BASE
        return
    if origin.base.startswith(_PATHS):
        gone = "" if os.path.exists(os.path.expanduser(origin.base)) else ", and is not there any more"
        yield f"the base is a path, which means nothing elsewhere{gone}: {origin.base}"
    for name in dict.fromkeys(filter(None, (origin.trained_on, origin.base))):
        if is_quantised(name):
            yield f"trained on the quantised base {name}: served with another, it is only approximately this function"


def _few(sentences: Iterable[str], more: str) -> Iterator[str]:
    listed = list(sentences)
    yield from listed[:_MOST]
    if len(listed) > _MOST:
        yield f"{len(listed) - _MOST} {more}"
