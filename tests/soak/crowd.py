"""The load as a phase: what it is run on, and what the commands that ended well have promised."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry import Registry
from tests.soak.commands import World
from tests.soak.invariants import CORRUPT, FAILED, Finding, Promises, check, check_output
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint
from tests.support.scoring import result_of, write_score_run


@dataclass
class Crowd:
    """What was done: operations by command, how many were killed, adapters read, and what was found."""

    operations: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    reads: int = 0
    promises: int = 0
    findings: list[Finding] = field(default_factory=list)


def crowd(world: World, scratch: Path, seed: int, seconds: float, processes: int) -> Crowd:
    """Let `processes` commands at a time loose on the filled home, and check it when all have ended."""
    home, outputs = scratch / "crowded", scratch / "load"
    shutil.copytree(world.filled, home)
    outputs.mkdir()
    volatile = [  # of one run, of which `gc --keep-last 1` lets two go; the others have a run each
        write_checkpoint(
            scratch / "volatile",
            contents(lora_state(modules=MODULES[:1], seed=50 + iteration), iteration=iteration),
            iteration=iteration,
            config={"run_id": "volatile"},
        )
        for iteration in range(3)
    ]
    apart = Registry(world.root / "apart")
    scores = [
        write_score_run(scratch / f"score{number}", result_of(world.digests["c"], scores={"pass@1": number / 9}))
        for number in range(8)
    ]
    plan = {
        "home": str(home),
        "scratch": str(outputs),
        "seed": seed,
        "seconds": seconds,
        "processes": processes,
        "stable": {str(path): world.digests[name] for name, path in world.checkpoints.items()},
        "volatile": {str(path): str(apart.add(path).digest) for path in volatile},
        "scores": [*map(str, scores)],
    }
    done = subprocess.run(
        [sys.executable, "-B", "-m", "tests.soak.load", json.dumps(plan)], stdout=subprocess.PIPE, text=True, check=True
    )
    answer = json.loads(done.stdout)
    result = Crowd(Counter(answer["operations"]), answer["killed"], answer["reads"])
    result.findings += [Finding(FAILED, each) for each in answer["failed"]]
    result.findings += [Finding(CORRUPT, each) for each in answer["corrupt"]]
    promises = Promises(kept={world.digests["a"], world.digests["c"]})
    for kind, what, code, target, document in answer["ends"]:
        if target is not None:
            result.findings += _outputs(Path(target), what, code, outputs)
        if document is not None:
            _promise(promises, kind, what, document, {*plan["volatile"].values()})
    result.promises = sum(map(len, (promises.kept, promises.moves, promises.scores, promises.removals)))
    registry = Registry(home)  # two updates: what the killed announced is finished, and what they left is swept
    registry.newest(1)
    for checkpoint in (*world.checkpoints.values(), *volatile):
        registry.add(checkpoint)
    promises.kept |= {*world.digests.values(), *plan["volatile"].values()}
    registry.set_alias("swept", world.digests["a"])
    result.findings += check(home, promises)
    return result


def _outputs(target: Path, digest: str, code: int, outputs: Path) -> list[Finding]:
    found = [each for each in check_output(target, [digest]) if each.kind == CORRUPT]
    if code == 0 and not (target / "adapter_model.safetensors").exists():
        found.append(Finding(CORRUPT, f"get made nothing: {target}"))
    if code not in (0, -9) and target.exists():
        found.append(Finding(CORRUPT, f"get failed and left {target}"))
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(outputs / f"{target.name}.partial", ignore_errors=True)
    return found


def _promise(promises: Promises, kind: str, what: str, document: Any, volatile: set[str]) -> None:
    if kind == "alias":
        promises.moves.add((what, document["record"]))
    elif kind == "score":
        promises.scores.add(document["record"])
    elif kind == "rm":
        promises.removals.add((document["digest"], document["record"]))
    else:
        promises.kept |= {each["digest"] for each in document["adapters"]} - volatile
