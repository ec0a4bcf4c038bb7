"""A PEFT adapter's directory: adapter_model.safetensors, or adapter_model.bin, beside adapter_config.json. It may be,
or be in, the checkpoint of a trainer whose layout is known.

What is right stays as it is, to the byte. What engines could not load is made right, and then it is a derived adapter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Unpack

from registry.checkpoints import checks, layouts, peft_keys
from registry.checkpoints.layouts import FILES
from registry.checkpoints.lora_keys import aliases, dense
from registry.checkpoints.manifests import find_listed, require_listed
from registry.checkpoints.peft_facts import agreed_config, earlier_export, provenance, require_agreeing_metadata
from registry.checkpoints.peft_warnings import warnings
from registry.checkpoints.source import Source
from registry.checkpoints.torchfile import open_torch_file
from registry.core import jsontext
from registry.core.contents import PeftAdapter
from registry.core.digest import Digest
from registry.core.errors import ChangedWhileRead, MalformedFile, Refused, UnsupportedLora
from registry.core.layout import CONFIG, PICKLED, WEIGHTS
from registry.core.model import Checkpoint, Parent, ReadOptions, RunCheckpoint
from registry.core.peft_config import read_config, read_settings
from registry.core.peft_tensors import decode
from registry.core.tensor import Tensor
from registry.disk import read_small
from registry.disk.safetensors import header_of, tensors_in

NAME = "peft"
LOOKS_FOR = CONFIG
_LARGEST_CONFIG = 4 << 20


class _File(NamedTuple):
    """The tensors' file: its digest, its size, the tensors by key, its bytes where they can be kept, and the rest."""

    digest: Digest
    size: int
    tensors: Mapping[str, Tensor]
    data: memoryview | None
    metadata: Mapping[str, str]
    aliases: tuple[tuple[str, str], ...]


def detects(path: str) -> bool:
    """Whether this is an adapter's directory, one of its files, or a checkpoint with one where its trainer puts it."""
    found = layouts.around(path)
    places = (path,) if found is None else (path, found.adapter)
    return os.path.basename(path) in FILES or any(
        os.path.lexists(os.path.join(place, name)) for place in places for name in FILES
    )


def checkpoints(run: str) -> Iterator[RunCheckpoint]:
    """What of this kind a run's directory holds, finished or not, in no order."""
    return layouts.checkpoints(run)


def lacks(path: str) -> str | None:
    """What a checkpoint still lacks before it may be read, by its names; None for nothing."""
    missing = layouts.lacks(path)
    directory = _directory(path)
    if missing is not None or not os.path.isdir(directory):
        return missing
    there = {name for name in FILES if os.path.lexists(os.path.join(directory, name))}
    return f"no {CONFIG}" if CONFIG not in there else f"no {WEIGHTS}" if len(there) == 1 else None


def is_whole(directory: str) -> bool:
    """Whether a directory has both the config and tensors."""
    has_config, *has_tensors = (os.path.lexists(os.path.join(directory, name)) for name in FILES)
    return has_config and any(has_tensors)


def files(path: str) -> list[str]:
    """The file with the tensors of an adapter, given as its directory or one of its files.

    Raises:
        Refused: there is none, or no config beside it.
    """
    return [_places(path)[0]]


def read(path: str, *, parent: Parent | None = None, **options: Unpack[ReadOptions]) -> Checkpoint:
    """Read an adapter, given as its directory or one of its files. Both files are opened once, and read once.

    Raises:
        NotFound, Refused and its subclasses, StorageError.
    """
    place = layouts.around(path)
    checks.require_whole(layouts.lacks(path), path)
    file, config_path = _places(path)
    text = read_small(config_path, _LARGEST_CONFIG)
    stated = read_config(text, config_path)
    beside = None if place is None else layouts.stated_lora(place)
    config, alpha_source, told = agreed_config(stated, options.get("alpha"), config_path, beside)
    read_settings(config, config_path)  # before the tensors are read, which can take long
    manifest = find_listed(os.path.dirname(file), os.path.basename(file))
    found = (_read_pickled if file.endswith(".bin") else _read_safetensors)(file, options)
    require_listed(manifest, file, found.digest)
    if read_small(config_path, _LARGEST_CONFIG) != text:
        raise ChangedWhileRead(
            "the file changed while the tensors were read",
            path=config_path,
            hint="Let the trainer finish writing it, then try again",
        )
    require_agreeing_metadata(found.metadata, config, file)
    _require_whole_tensors(found.tensors, file)
    renamed = peft_keys.rename(found.tensors, file)
    changes = list(renamed.changes)
    if renamed.changes:
        config = peft_keys.renamed_config(config)
    if found.data is None:
        changes.insert(0, f"written anew from {os.path.basename(file)}")
    changes += told
    if config != stated or list(config) != list(stated):
        text = jsontext.pretty_in_order(config)
    tensors = {renamed.names[key]: tensor for key, tensor in found.tensors.items()}
    contents = decode(tensors, text, file, config_path)
    nonfinite = checks.nonfinite(found.tensors.items(), file, allowed=options.get("allow_nonfinite", False))
    earlier = earlier_export(os.path.dirname(file), found.digest)
    peft = PeftAdapter(contents, tensors, text, None if changes else found.data, tuple(changes))
    step, doubt = (None, None) if place is None else layouts.stated_step(place)
    if step is None and place is not None:
        step = place.step
    origin = provenance(config, earlier, options, parent, step)
    return Checkpoint(
        path=file,
        digest=found.digest,
        size=found.size,
        reader=NAME if place is None else place.layout.producer,
        manifest=manifest,
        lora=contents.lora,
        alpha_source=alpha_source,
        provenance=origin,
        stripped=renamed.stripped,
        aliases=found.aliases,
        nonfinite=nonfinite,
        zero_b=contents.zero_b,
        warnings=(*warnings(peft, origin, earlier, nonfinite, file), *((doubt,) if doubt else ())),
        peft=peft,
    )


def _directory(path: str) -> str:
    """Where the adapter of a path lies: in that directory, or where its trainer puts it."""
    found = layouts.around(path)
    if found is None or any(os.path.lexists(os.path.join(path, name)) for name in FILES):
        return path
    return found.adapter


def _places(path: str) -> tuple[str, str]:
    """The file of the tensors and the config."""
    named = os.path.basename(path) in FILES and not os.path.isdir(path)
    directory = os.path.dirname(path) if named else _directory(path)
    config = os.path.join(directory, CONFIG)
    if named and os.path.basename(path) != CONFIG:
        file = path
    else:
        there = [name for name in (WEIGHTS, PICKLED) if os.path.lexists(os.path.join(directory, name))]
        if not there:
            raise Refused(f"the directory holds no {WEIGHTS} and no {PICKLED}", path=directory)
        file = os.path.join(directory, there[0])
    if not os.path.lexists(config):
        raise Refused(f"the directory holds no {CONFIG}: nothing says how strong this is", path=directory)
    for each in (file, config):
        if os.path.islink(each) and not os.path.exists(each):
            raise Refused("a symbolic link that leads nowhere", path=each, found=os.readlink(each))
    return file, config


def _read_safetensors(path: str, options: ReadOptions) -> _File:
    with Source(path) as source:
        header = header_of(source.peek, source.size, path)
        report, size = options.get("progress"), source.size
        progress = None if report is None else lambda count: report(count, size)
        streamed = source.stream([(0, size)], progress)
    data = streamed.view(0, size)
    return _File(streamed.digest, size, tensors_in(header, data), data, header.metadata, ())


def _read_pickled(path: str, options: ReadOptions) -> _File:
    with open_torch_file(path) as opened:
        contents: Any = opened.contents
        if not isinstance(contents, Mapping) or not all(isinstance(key, str) for key in contents):
            raise MalformedFile("not a map from names to tensors", path=path, found=type(contents).__name__)
        refs = {key: dense(value, key, path) for key, value in contents.items()}
        report, size = options.get("progress"), opened.source.size
        progress = None if report is None else lambda count: report(count, size)
        digest, tensors = opened.read(refs.values(), progress)
    return _File(digest, size, {key: tensors[ref] for key, ref in refs.items()}, None, {}, tuple(aliases(refs)))


def _require_whole_tensors(tensors: Mapping[str, Tensor], path: str) -> None:
    for key, tensor in sorted(tensors.items()):
        if tensor.numel == 0:
            raise UnsupportedLora(
                "empty tensor: a sharded save?", path=path, key=key, found=f"shape {list(tensor.shape)}"
            )
        if tensor.dtype.safetensors is None:
            raise UnsupportedLora("not a type that safetensors has", path=path, key=key, found=tensor.dtype)
