"""What stands beside a PEFT adapter's tensors: alpha, the base, an earlier export of the same bytes. Read, never
guessed; what contradicts itself is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from registry.checkpoints import checks, facts
from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import MalformedFile, MissingAlpha, NotFound, Refused, UnsupportedLora
from registry.core.layout import CONFIG, MANIFEST, WEIGHTS
from registry.core.model import Parent, Provenance, ReadOptions, number
from registry.core.peft_config import function
from registry.disk import read_small


def agreed_config(
    config: dict[str, Any], option: float | None, path: str, beside: tuple[str, Mapping[str, Any]] | None = None
) -> tuple[dict[str, Any], str, list[str]]:
    """The config with alpha in it, who gave alpha (`config`, `checkpoint` or `option`), and what was changed.

    `beside` is another file of the checkpoint that states r and lora_alpha, and what it states. Where the config states
    alpha 0, which some versions of verl write, or none, that one counts.

    Raises:
        MissingAlpha: nobody did; peft's own default is not taken.
        UnsupportedLora: two did, and differently.
    """
    if beside is not None:
        return _agreed_with(config, option, path, *beside)
    given = None if option is None else number(option) or None
    if option is not None and given is None:
        raise UnsupportedLora("alpha must be a finite number other than zero", key="--alpha", found=option)
    stated = config.get("lora_alpha")
    if stated is None:
        if given is None:
            raise MissingAlpha(
                "alpha is stated nowhere", path=path, found="none in lora_alpha", hint="Give it with --alpha"
            )
        return {**config, "lora_alpha": given}, "option", [f"lora_alpha {given} was given"]
    if given is not None and number(stated) != given:
        raise UnsupportedLora("alpha is stated in the config", path=path, key="--alpha", found=given, expected=stated)
    return config, "config", []


def _agreed_with(
    config: dict[str, Any], option: float | None, path: str, other: str, stated: Mapping[str, Any]
) -> tuple[dict[str, Any], str, list[str]]:
    for key in ("r", "lora_alpha"):
        mine, its = config.get(key), stated.get(key)
        if mine and its and number(mine) != number(its):
            raise UnsupportedLora("two files state it differently", path=other, key=key, found=its, expected=mine)
    alpha = number(stated.get("lora_alpha"))
    if config.get("lora_alpha") or not alpha:
        return agreed_config(config, option, path)
    name = os.path.basename(other)
    if option is not None and number(option) != alpha:
        raise UnsupportedLora(f"alpha is stated in {name}", path=other, key="--alpha", found=option, expected=alpha)
    return {**config, "lora_alpha": alpha}, "checkpoint", [f"lora_alpha {alpha} is from {name}"]


def require_agreeing_metadata(metadata: Mapping[str, str], config: Mapping[str, Any], path: str) -> None:
    """Hold the config against the settings that this project writes into the header of the tensors' file.

    Raises:
        Refused: they differ. The digest covers the header and not the config, so the header is right.
    """
    text = metadata.get("lora")
    if text is None:
        return
    try:
        stated = jsontext.parse(text.encode(), path)
    except MalformedFile:  # somebody else's entry of this name
        return
    if not isinstance(stated, dict) or not {"r", "lora_alpha"} <= stated.keys():
        return
    configured = function(config)
    if stated != configured:
        keys = sorted(key for key in {*stated, *configured} if stated.get(key) != configured.get(key))
        raise Refused(
            f"{CONFIG} contradicts what the file itself states",
            path=path,
            key=", ".join(keys),
            found=jsontext.compact({key: configured.get(key) for key in keys}).decode(),
            expected=jsontext.compact({key: stated.get(key) for key in keys}).decode(),
        )


def earlier_export(directory: str, digest: Digest) -> Mapping[str, Any] | None:
    """The manifest beside an adapter that this project exported; None where there is none, or it is of other bytes."""
    path = os.path.join(directory, MANIFEST)
    try:
        manifest = facts.mapping(jsontext.parse(read_small(path), path))
    except (NotFound, Refused):
        return None
    weights = facts.mapping(facts.mapping(manifest.get("adapter")).get(WEIGHTS))
    return manifest if facts.digest(weights.get("sha256")) == digest else None


def provenance(
    config: Mapping[str, Any],
    earlier: Mapping[str, Any] | None,
    options: ReadOptions,
    parent: Parent | None,
    step: int | None,
) -> Provenance:
    """Where the adapter comes from, as its config, the manifest of an earlier export and its trainer (`step`) say.

    Raises:
        Refused: `run` or `parent` contradicts the manifest, or a name is not printable.
    """
    name, base, renamed = checks.stated_names(options)
    run = facts.mapping((earlier or {}).get("run"))
    known = facts.text(run.get("id"))
    if name is not None and known is not None and name != known:
        raise Refused(f"{MANIFEST} beside it states another run", key="run.id", found=known, expected=name)
    stated = facts.text(config.get("base_model_name_or_path"))
    start, source = checks.agreed_start(facts.digest(run.get("warm_start")), parent, MANIFEST, "run.warm_start")
    rounding = run.get("stochastic_rounding")
    return Provenance(
        run=known or name,
        iteration=step if earlier is None else facts.whole(run.get("iteration")),
        base=base if renamed else stated or base,
        base_revision=None if renamed else facts.text(config.get("revision")),
        trained_on=stated if renamed and stated != base else None,
        warm_start=start,
        warm_start_source=source,
        resumed_from=facts.digest(run.get("resumed_from")),
        stochastic_rounding=rounding if isinstance(rounding, bool) else None,
    )
