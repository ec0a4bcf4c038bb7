"""How trainers lay out the PEFT adapters that they save: which directory is a checkpoint, where in it the adapter lies,
which step it is of, and what shows that it is whole. A producer that saves PEFT adapters is one more `Layout`.

Facts from the projects' own code and documentation, as of November 2026. Names and small files only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from registry.checkpoints import facts
from registry.core import jsontext
from registry.core.errors import NotFound, RegistryError
from registry.core.layout import CONFIG, PICKLED, WEIGHTS
from registry.core.model import RunCheckpoint
from registry.disk import read_small

FILES = (CONFIG, WEIGHTS, PICKLED)
_UNFINISHED = re.compile(r"_?(?:tmp|temp)[-_.](?P<after>.+)|(?P<before>.+)[-_.](?:tmp|temp|partial|incomplete)")
_DEEPEST = 3  # global_step_5/actor/lora_adapter
_TRAINER_STATE = "trainer_state.json"
_VERL_LATEST = "latest_checkpointed_iteration.txt"
VERL_META = "lora_train_meta.json"
_LARGEST_STATE = 64 << 20  # it holds the log of the whole run


class Layout(NamedTuple):
    """What one producer does.

    Attributes:
        producer: what manifests call it.
        name: of a checkpoint's directory; the group `step` is its step.
        adapter: where in that the adapter lies, the likeliest first; "" for the directory itself.
        parents: what the directory that holds the checkpoints is called, below the run's; () for the run's own.
        marker: a file that is written last, where there is one.
        sign: a file that it always writes beside the adapter, where the directory's name alone could be anyone's.
    """

    producer: str
    name: re.Pattern[str]
    adapter: tuple[str, ...] = ("",)
    parents: tuple[str, ...] = ()
    marker: str | None = None
    sign: str | None = None


LAYOUTS = (
    Layout("transformers", re.compile(r"checkpoint-(?P<step>\d+)")),  # TRL, Unsloth, axolotl, LLaMA-Factory too
    Layout("verl", re.compile(r"global_step_(?P<step>\d+)"), ("actor/lora_adapter", "lora_adapter")),
    Layout("prime-rl", re.compile(r"step_(?P<step>\d+)"), parents=("broadcasts",), marker="STABLE"),
    Layout("prime-rl", re.compile(r"step_(?P<step>\d+)"), ("lora_adapters",), ("weights",), "STABLE"),
    Layout("areal", re.compile(r"epoch\d+epochstep\d+globalstep(?P<step>\d+)")),
    Layout("nemo-automodel", re.compile(r"epoch_\d+_step_(?P<step>\d+)"), ("model",)),
    Layout("openrlhf", re.compile(r"global_step(?P<step>\d+)_hf")),
    Layout("torchtune", re.compile(r"epoch_(?P<step>\d+)"), sign="adapter_model.pt"),
    Layout("miles", re.compile(r"iter_(?P<step>\d+)"), ("adapter",)),
)
_OWN_FORMS = (
    (
        re.compile(r"adapter_model\.pt|adapter_\d+\.pt"),
        f"torchtune's own names and order of rows; it writes {WEIGHTS} beside it, for the models that it can convert",
    ),
    (
        re.compile(r"adapter_megatron_.+\.pt"),
        f"a shard in Megatron's own form; miles writes {PICKLED} beside it, unless its export failed",
    ),
)
"""What trainers also write, for themselves: no base has these names."""


class Found(NamedTuple):
    """A checkpoint that one of the layouts describes.

    Attributes:
        layout: which.
        directory: of the checkpoint.
        adapter: the directory in it with the adapter, or where that would be.
        step: as the directory's name states it.
        unfinished: whether that name says that it is being written.
    """

    layout: Layout
    directory: str
    adapter: str
    step: int
    unfinished: bool


def around(path: str) -> Found | None:
    """The checkpoint that a path is, or that its adapter's directory or file is in. Links are followed."""
    directory = os.path.realpath(path if os.path.isdir(path) else os.path.dirname(path))
    lies_here, inside = _has_any(directory), ""
    for _ in range(_DEEPEST):
        for layout in LAYOUTS:
            found = _found(layout, directory)
            if found is not None and any(
                place == inside if lies_here else _begins(place, inside) for place in layout.adapter
            ):
                return found
        directory, name = os.path.split(directory)
        inside = f"{name}/{inside}" if inside else name
    return None


def checkpoints(run: str) -> Iterator[RunCheckpoint]:
    """The checkpoints below a run's directory that hold any file of an adapter, in no order."""
    for place in ("", *sorted({parent for layout in LAYOUTS for parent in layout.parents})):
        directory = os.path.join(run, place) if place else run
        for name in _directories(directory):
            path = os.path.join(directory, name)
            found = next((found for layout in LAYOUTS if (found := _found(layout, path)) is not None), None)
            if found is not None and _has_any(found.adapter):
                yield RunCheckpoint(path, found.step)


def steps(run: str, producer: str) -> Iterator[tuple[str, int]]:
    """The directories of a run that one producer calls as it calls its checkpoints, with their steps."""
    for layout in LAYOUTS:
        if layout.producer == producer:
            for name in _directories(run):
                found = _found(layout, os.path.join(run, name))
                if found is not None:
                    yield found.directory, found.step


def names(directory: str) -> list[str]:
    """What a directory lists; nothing where it cannot be listed."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def lacks(path: str) -> str | None:
    """What the checkpoint that a path is, or is in, still lacks before it may be read; None for nothing."""
    found = around(path)
    if found is None:
        return None
    if found.unfinished:
        return f"the name {os.path.basename(found.directory)} says that it is being written"
    marker = found.layout.marker
    if marker is not None and not os.path.lexists(os.path.join(found.directory, marker)):
        return f"no {marker}, which {found.layout.producer} writes last"
    latest = _verl_latest(found)
    if latest is not None and latest < found.step:
        return f"{_VERL_LATEST} says that step {latest} is the last that is whole"
    return None


def stated_step(found: Found) -> tuple[int | None, str | None]:
    """The step that a file of the checkpoint states, and what is to be warned of."""
    if found.layout.producer != "transformers":
        return None, None
    path = os.path.join(found.directory, _TRAINER_STATE)
    try:
        state = jsontext.parse(read_small(path, _LARGEST_STATE), path)
    except NotFound:
        return None, None
    except RegistryError as error:
        return None, f"{_TRAINER_STATE} cannot be read: {error.problem}"
    step = facts.whole(facts.mapping(state).get("global_step"))
    if step is not None and step != found.step:
        return step, f"the directory says step {found.step}, {_TRAINER_STATE} {step}"
    return step, None


def stated_lora(found: Found) -> tuple[str, dict[str, Any]] | None:
    """The file in which verl states r and alpha beside the adapter, and what it states.

    Raises:
        MalformedFile: it is no JSON object.
    """
    if found.layout.producer != "verl":
        return None
    for directory in dict.fromkeys((found.adapter, os.path.dirname(found.adapter), found.directory)):
        stated = verl_meta(directory)
        if stated is not None:
            return stated
    return None


def verl_meta(directory: str) -> tuple[str, dict[str, Any]] | None:
    """Verl's file of r and alpha in a directory, and what it states; None where there is none.

    Raises:
        MalformedFile: it is no JSON.
    """
    path = os.path.join(directory, VERL_META)
    with suppress(NotFound):
        return path, dict(facts.mapping(jsontext.parse(read_small(path), path)))
    return None


def own_form(directory: str) -> tuple[str, str] | None:
    """A file in a trainer's own form, in a directory or where an adapter would be in it, and why it is not read."""
    found = around(directory)
    for place in dict.fromkeys((directory, *(() if found is None else (found.adapter,)))):
        for name in sorted(names(place)):
            for form, reason in _OWN_FORMS:
                if form.fullmatch(name):
                    return os.path.join(place, name), reason
    return None


def _found(layout: Layout, directory: str) -> Found | None:
    parent, name = os.path.split(directory)
    if layout.parents and os.path.basename(parent) not in layout.parents:
        return None
    affixed = _UNFINISHED.fullmatch(name)
    plain = name if affixed is None else affixed["after"] or affixed["before"]
    match = layout.name.fullmatch(plain)
    step = None if match is None else facts.whole(int(match["step"]))
    if step is None:
        return None
    places = [os.path.join(directory, place) if place else directory for place in layout.adapter]
    if layout.sign is not None and not any(os.path.lexists(os.path.join(place, layout.sign)) for place in places):
        return None
    return Found(layout, directory, next(filter(_has_any, places), places[0]), step, affixed is not None)


def _begins(place: str, inside: str) -> bool:
    """Whether what lies `inside` a checkpoint is on the way to where the adapter is."""
    return f"{place}/".startswith(f"{inside}/") if inside else True


def _has_any(directory: str) -> bool:
    return any(os.path.lexists(os.path.join(directory, name)) for name in FILES)


def _verl_latest(found: Found) -> int | None:
    """The last step that verl says is whole, if it said so before it made this checkpoint.

    What is older and has a higher step was left by an earlier try of the run, which was then resumed from before it.
    """
    if found.layout.producer != "verl":
        return None
    path = os.path.join(os.path.dirname(found.directory), _VERL_LATEST)
    try:
        text = read_small(path, 64).decode("ascii", "replace").strip()
        said_before = os.stat(path).st_mtime_ns < os.stat(found.directory).st_mtime_ns
    except (RegistryError, OSError):
        return None
    return int(text) if said_before and text.isascii() and text.isdigit() else None


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:  # none, or unreadable: what cannot be seen is not listed
        return []
