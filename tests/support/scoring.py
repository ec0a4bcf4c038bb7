"""The files that a score run leaves, and registries with something to score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from registry import Digest, Registry
from tests.support.runs import contents, lora_state, write_checkpoint

RESULT = "run_result.json"
CONFIG = "config.json"


def result_of(adapter: object = None, **facts: Any) -> dict[str, Any]:
    """What run_result.json says: of a completed run, unless `facts` say otherwise; None leaves one out."""
    stated = {"status": "completed", "scores": {"pass@1": 0.41}, **facts}
    if adapter is not None:
        stated["model"] = {"adapter": str(adapter)}
    return {key: value for key, value in stated.items() if value is not None}


def write_score_run(
    directory: Path, result: dict[str, Any] | str | bytes, config: dict[str, Any] | str | bytes | None = None
) -> Path:
    """Write the files of a score run; text and bytes as they are. The directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, stated in ((RESULT, result), (CONFIG, config)):
        if stated is not None:
            text = json.dumps(stated) if isinstance(stated, dict) else stated
            (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return directory


def add_run(registry: Registry, root: Path, run: str, iterations: tuple[int, ...], *, seed: int = 0) -> list[Digest]:
    """Add an adapter for each iteration of a run, every one of other tensors."""
    return [
        registry.add(
            write_checkpoint(
                root / run / str(seed + number),
                contents(lora_state(seed=seed + number), iteration=iteration),
                iteration=iteration,
                config={"run_id": run},
            )
        ).digest
        for number, iteration in enumerate(iterations)
    ]
