"""export-manifest.json: what was exported, from what, by what. It is also the predicate of the export record."""

from __future__ import annotations

from typing import Any

from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.layout import CONFIG, WEIGHTS
from registry.core.model import Checkpoint
from registry.core.peft_config import function

FORMAT = 1


def export_manifest(
    checkpoint: Checkpoint,
    *,
    weights: tuple[Digest, int],
    config: tuple[Digest, int],
    tensors: Digest,
    versions: dict[str, str],
    exported_at: str,
) -> dict[str, Any]:
    """The manifest as a JSON value.

    Args:
        checkpoint: what was read.
        weights: sha256 and length in bytes of adapter_model.safetensors, as it landed.
        config: the same of adapter_config.json.
        tensors: the tensor digest.
        versions: of this package and of Python.
        exported_at: UTC, ISO 8601.
    """
    origin = checkpoint.provenance
    listed, peft = checkpoint.manifest, checkpoint.peft
    return {
        "format": FORMAT,
        "pass": True,
        "checkpoint": {
            "path": jsontext.sayable(checkpoint.path),
            "sha256": checkpoint.digest.hex,
            "bytes": checkpoint.size,
            "reader": checkpoint.reader,
            "manifest": None if listed is None else {"name": listed.name, "sha256": listed.digest.hex},
        },
        "adapter": {
            WEIGHTS: {"sha256": weights[0].hex, "bytes": weights[1]},
            CONFIG: {"sha256": config[0].hex, "bytes": config[1]},
            "tensor_digest": tensors.hex,
            "modules": checkpoint.modules,
            "zero_lora_b": checkpoint.zero_b,
            "nonfinite": checkpoint.nonfinite,
        },
        "derived": _derived(checkpoint),
        "lora": checkpoint.lora.settings.function() if peft is None else function(peft.contents.config),
        "alpha_source": checkpoint.alpha_source,
        "run": {
            "id": origin.run,
            "iteration": origin.iteration,
            "config_sha256": _hex(origin.config),
            "warm_start": _hex(origin.warm_start),
            "warm_start_source": origin.warm_start_source,
            "resumed_from": _hex(origin.resumed_from),
            "stochastic_rounding": origin.stochastic_rounding,
        },
        "base": {"name": origin.base, "revision": origin.base_revision, "trained_on": origin.trained_on},
        "stripped_prefixes": list(checkpoint.stripped),
        "same_tensor": [list(pair) for pair in checkpoint.aliases],
        "warnings": list(checkpoint.warnings),
        "versions": versions,
        "exported_at": exported_at,
    }


def _derived(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """What was changed in an adapter that was one already; null where its bytes were kept, or where there was none."""
    if checkpoint.peft is None or not checkpoint.peft.changes:
        return None
    return {"from": checkpoint.digest.hex, "changes": list(checkpoint.peft.changes)}


def same_export(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two manifests state the same fact: equal but for when, where and with which version it was done."""
    return _lasting(one) == _lasting(other)


def _lasting(manifest: dict[str, Any]) -> dict[str, Any]:
    volatile = {"exported_at", "versions", "warnings", "checkpoint"}
    facts = {key: value for key, value in manifest.items() if key not in volatile}
    run = {key: value for key, value in manifest["run"].items() if key not in ("config_sha256", "warm_start_source")}
    # What earlier versions did not write says nothing else than null.
    later = {"derived": manifest.get("derived"), "base": {"trained_on": None, **manifest["base"]}}
    return facts | later | {"checkpoint": manifest["checkpoint"]["sha256"], "run": run}


def _hex(digest: Digest | None) -> str | None:
    return None if digest is None else digest.hex
