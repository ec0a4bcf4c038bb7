"""adapter_config.json: what peft's `PeftConfig.from_pretrained` and vLLM's `PEFTHelper` read."""

from __future__ import annotations

from registry.core import jsontext
from registry.core.model import Lora, Provenance


def adapter_config(lora: Lora, provenance: Provenance) -> bytes:
    """The canonical JSON text of the config.

    `target_modules` lists every module of the file by its full path: a shorter suffix could select modules that were
    never trained, or that another base has and this one has not.
    """
    settings = lora.settings
    return jsontext.pretty(
        {
            "base_model_name_or_path": provenance.base,
            "bias": "none",
            "fan_in_fan_out": settings.fan_in_fan_out,
            "inference_mode": True,
            "init_lora_weights": True,
            "lora_alpha": settings.alpha,
            "alpha_pattern": dict(settings.alpha_pattern),
            "lora_dropout": 0.0,
            "modules_to_save": None,
            "peft_type": "LORA",
            "r": settings.r,
            "rank_pattern": dict(settings.rank_pattern),
            "revision": provenance.base_revision,
            "target_modules": [pair.module for pair in lora.pairs],
            "task_type": "CAUSAL_LM",
            "use_dora": False,
            "use_rslora": settings.use_rslora,
        }
    )
