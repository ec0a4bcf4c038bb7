"""Fit: whether an adapter has to do with a base at all, found out before it is added. Reads no tensor of the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from registry.core.contents import AdapterContents
from registry.core.errors import RegistryError, UnsupportedLora
from registry.core.model import Checkpoint
from registry.served.plan import plan
from registry.served.weights import open_weights

_SHOWN = 5


def fitted(checkpoint: Checkpoint, base: str) -> tuple[Checkpoint, RegistryError | None]:
    """The checkpoint, warned of what has no place in the base; or why the base cannot be read, which stops nothing.

    Args:
        checkpoint: with the adapter.
        base: the base's safetensors file or directory.

    Raises:
        UnsupportedLora: not one module is in the base: an engine would serve the base without a word.
    """
    try:
        with open_weights(base) as weights:
            planned = plan(_contents(checkpoint), weights)
    except UnsupportedLora:
        raise
    except RegistryError as error:
        return checkpoint, error
    known = set() if checkpoint.peft is None else set(checkpoint.peft.contents.unsupported)
    warnings = (
        *_told("the base does not have", planned.unmatched),
        *_told("has no place in the base:", [each for each in planned.unsupported if each not in known]),
    )
    return replace(checkpoint, warnings=(*checkpoint.warnings, *warnings)), None


def _contents(checkpoint: Checkpoint) -> AdapterContents:
    if checkpoint.peft is not None:
        return checkpoint.peft.contents
    return AdapterContents(
        lora=checkpoint.lora,
        config={},
        embeddings=(),
        magnitudes={},
        lora_biases={},
        replaced={},
        biases={},
        packed={},
        rest={},
        unknown=(),
        unsupported=(),
    )


def _told(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (f"{what} {'; '.join(names[:_SHOWN])}{more}",)
