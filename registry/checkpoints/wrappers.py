"""What trainers and frameworks put around the names of a model's modules."""

from __future__ import annotations

from registry.core.model import PEFT_PREFIX

ANYWHERE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts that stand for no module of the model, wherever they are."""

OUTERMOST = "module"


def unwrapped(module: str) -> tuple[str, set[str]]:
    """The module's own name, and the prefixes that were removed: wrappers can stand between the parts of peft's own."""
    name, removed = without_wrappers(module)
    before, found, rest = f".{name}.".partition(f".{PEFT_PREFIX}")
    if found:
        removed.add(f"{before}.{PEFT_PREFIX}".removeprefix("."))
        name = rest.removesuffix(".")
    name, outermost = without_outermost(name)
    return name, removed | outermost


def without_wrappers(name: str) -> tuple[str, set[str]]:
    """The name without the parts that can stand anywhere, and those."""
    parts = name.split(".")
    removed = {f"{part}." for part in parts if part in ANYWHERE}
    return ".".join(part for part in parts if part not in ANYWHERE), removed


def without_outermost(name: str) -> tuple[str, set[str]]:
    """The name without every leading `module.`, and that."""
    removed: set[str] = set()
    while name == OUTERMOST or name.startswith(f"{OUTERMOST}."):
        removed.add(f"{OUTERMOST}.")
        name = name.removeprefix(OUTERMOST).removeprefix(".")
    return name, removed
