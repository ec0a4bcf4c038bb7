"""`--json`: the documents as they are promised, key by key. Scripts read them, so a change here is a change of the
interface. What differs from run to run is replaced by its kind; everything else is literal.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from registry.index.schema import HEAD
from tests.support.many import run_each
from tests.support.process import CommandLine
from tests.support.runs import contents, write_checkpoint
from tests.support.scoring import result_of, write_score_run

PLAIN = "sha256:0d47430cd907fe1487149d2bbc985615d6aba49e18927b57ecc76931992e7639"
STRONG = "sha256:352a8d16e519858e3c5aea084d5af335e51b2a1e498ac830f37eb957e39f4dea"
TENSORS = "sha256:3db283b892608b00f25c5329fef9889954f52ac38b324cc7a262b19ae5ab22ea"
"""The two adapters, which have equal tensors: these bytes are promised too."""

BARE = 872 + 457
"""Bytes of the first one's weights and config, without the manifest: that holds paths."""

VOLATILE = (
    ("<time>", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")),
    ("<sha256>", re.compile(r"sha256:[0-9a-f]{64}")),
    ("<base>", re.compile(r"base:org/base#[0-9a-f]{16}")),
    ("<run>", re.compile(r"run:run#[0-9a-f]{16}")),
    ("<checkpoint>", re.compile(r"checkpoint:[0-9a-f]{64}")),
    ("<adapter>", re.compile(rf"adapter:{PLAIN[7:]}")),
    ("<user@host>", re.compile(r"[^@/\s]+@[^@/\s]+")),
)

PLAIN_DOCUMENT = {
    "digest": PLAIN,
    "tensor_digest": TENSORS,
    "bytes": 872,
    "modules": 2,
    "r": 4,
    "lora_alpha": 8,
    "use_rslora": False,
    "first_exported_at": "<time>",
    "removed_at": None,
    "same_tensors": [STRONG],
    "aliases": [],
    "exports": [
        {
            "checkpoint_digest": "<sha256>",
            "run": "run",
            "iteration": 3,
            "base": "org/base",
            "base_revision": "main",
            "path": "<root>/run/ckpt/iter-3/trainer.pt",
            "reader": "aorlta",
            "exported_at": "<time>",
            "warm_start": None,
            "resumed_from": None,
            "record": "<sha256>",
        }
    ],
    "verdict": None,
    "comparisons": [],
    "scores": {},
    "score_runs": [],
}
STRONG_DOCUMENT = {
    "digest": STRONG,
    "tensor_digest": TENSORS,
    "bytes": 880,
    "modules": 2,
    "r": 4,
    "lora_alpha": 16.5,
    "use_rslora": False,
    "first_exported_at": "<time>",
    "removed_at": None,
    "same_tensors": [PLAIN],
    "aliases": [],
    "exports": [
        {
            "checkpoint_digest": "<sha256>",
            "run": None,
            "iteration": 3,
            "base": None,
            "base_revision": None,
            "path": "<root>/other/ckpt/iter-3/trainer.pt",
            "reader": "aorlta",
            "exported_at": "<time>",
            "warm_start": None,
            "resumed_from": None,
            "record": "<sha256>",
        }
    ],
    "verdict": None,
    "comparisons": [],
    "scores": {},
    "score_runs": [],
}


def move(sequence: int, previous: str | None, digest: str | None) -> dict[str, Any]:
    return {
        "alias": "prod",
        "digest": digest,
        "previous": previous,
        "sequence": sequence,
        "moved_at": "<time>",
        "moved_by": "<user@host>",
        "record": "<sha256>",
    }


def score_run(*, new: bool) -> dict[str, Any]:
    return {**SCORE_RUN, "new": new, "left_out": ["note is text"]}


SCORE_RUN = {
    "digest": PLAIN,
    "name": "eval-1",
    "status": "completed",
    "reason": None,
    "scores": {"accuracy": 0.41, "mmlu/law": 1.0},
    "path": "<root>/eval",
    "result_digest": "<sha256>",
    "config_digest": None,
    "scored_at": "<time>",
    "scored_by": "<user@host>",
    "record": "<sha256>",
}
STOPPED_RUN = {
    **SCORE_RUN,
    "name": None,
    "status": "stopped",
    "reason": "out of time",
    "scores": {"pass@1": 0.9},
    "path": "<root>/stopped",
    "config_digest": "<sha256>",
}
SCORED_DOCUMENT = {**PLAIN_DOCUMENT, "scores": SCORE_RUN["scores"], "score_runs": [SCORE_RUN, STOPPED_RUN]}
OTHERWISE = "<root>/eval/run_result.json: model.adapter"
NO_METRIC = "no score run of its adapters that completed has this metric"
RELIED_ON = (
    "Move or remove the aliases (`aorlta-reg alias remove NAME`); or give --force, and the record will name what was "
    "overridden"
)


def lineage(asked: str) -> dict[str, Any]:
    """Of the one run, which is the same for its adapter."""
    checkpoint = {"digest": "<sha256>", "known": True, "iteration": 3, "unchanged": []}
    return {
        "asked": [asked],
        "nodes": [
            {"key": "<base>", "kind": "base", "name": "org/base", "revision": "main"},
            {
                "key": "<run>",
                "kind": "run",
                "name": "run",
                "base": "org/base",
                "base_revision": "main",
                "warm_start": None,
                "same_tensors": False,
                "resumed_from": None,
                "resumed_from_own": False,
                "resumed_from_iteration": None,
            },
            {"key": "<checkpoint>", "kind": "checkpoint", **checkpoint},
            {
                "key": "<adapter>",
                "kind": "adapter",
                "digest": PLAIN,
                "known": True,
                "tensor_digest": TENSORS,
                "r": 4,
                "lora_alpha": 8,
                "verdict": None,
                "removed_at": None,
                "aliases": [],
            },
        ],
        "edges": [
            {"source": "<base>", "target": "<run>", "link": "trained"},
            {"source": "<checkpoint>", "target": "<adapter>", "link": "exported"},
            {"source": "<run>", "target": "<checkpoint>", "link": "saved"},
        ],
        "left_out": [],
        "contradictions": [],
    }


MISPLACED = "Look at `aorlta-reg alias history` before moving it"
NO_MANIFEST = "no manifest beside the checkpoint: nothing says which bytes the trainer wrote"
TOO_HIGH = "not for vllm: rank 4: vllm was started with a highest rank of 3"
MERGE = "`aorlta-reg merge` makes a model of it, which any engine serves"
ENGINES = {"engines": {name: {"max_lora_rank": 4, "unfit": []} for name in ("vllm", "sglang", "peft")}}
KNOWN = {"step": 3, "state": "known", "digest": PLAIN, "reason": None}
NO_RUN = "the run is not known: give it with --run"
MISSING = {"kind": "NotFound", "message": "<root>/missing: no such file", "path": "<root>/missing"}
TAKEN = "Nothing was written; name another directory or remove this one"

DOCUMENTS: list[tuple[str, int, Any, Any]] = [  # the command, its exit code, stdout, stderr; run in this order
    ("list", 0, {"adapters": []}, None),
    (
        "add run/ckpt/iter-3 other/ckpt/iter-3 missing",
        3,
        {
            "adapters": [
                {
                    "checkpoint": "run/ckpt/iter-3",
                    "checkpoint_digest": "<sha256>",
                    "digest": PLAIN,
                    "outcome": "added",
                    "new_export": True,
                    "damage": None,
                    "run": "run",
                    "iteration": 3,
                    "verdict": None,
                    "warnings": [],
                },
                {
                    "checkpoint": "other/ckpt/iter-3",
                    "checkpoint_digest": "<sha256>",
                    "digest": STRONG,
                    "outcome": "added",
                    "new_export": True,
                    "damage": None,
                    "run": None,
                    "iteration": 3,
                    "verdict": None,
                    "warnings": [NO_MANIFEST, NO_RUN],
                },
            ],
            "errors": [{"checkpoint": "missing", **MISSING}],
            "skipped": [],
        },
        {"error": MISSING},
    ),
    (
        "add run/ckpt/iter-3",
        0,
        {
            "adapters": [
                {
                    "checkpoint": "run/ckpt/iter-3",
                    "checkpoint_digest": "<sha256>",
                    "digest": PLAIN,
                    "outcome": "already present",
                    "new_export": False,
                    "damage": None,
                    "run": "run",
                    "iteration": 3,
                    "verdict": None,
                    "warnings": [],
                }
            ],
            "errors": [],
            "skipped": [],
        },
        None,
    ),
    (
        "add run --run run",
        0,
        {"adapters": [], "errors": [], "skipped": [{"checkpoint": "run/ckpt/iter-3", **KNOWN}]},
        None,
    ),
    (
        "watch run --every 0.1 --until-idle 0.1",
        0,
        {"checkpoint": "run/ckpt/iter-3", **KNOWN, "added": None, "error": None},
        None,
    ),
    (
        "export other/ckpt/iter-3 --out out",
        0,
        {"digest": STRONG, "directory": "<root>/out", "warnings": [NO_MANIFEST, NO_RUN]},
        None,
    ),
    ("list", 0, {"adapters": [STRONG_DOCUMENT, PLAIN_DOCUMENT]}, None),
    ("list --sort oldest", 0, {"adapters": [PLAIN_DOCUMENT, STRONG_DOCUMENT]}, None),
    ("find --run run --iter 1..3 --alpha 8", 0, PLAIN_DOCUMENT, None),
    ("find --r 5", 0, None, None),
    (
        "find --iter x",
        2,
        None,
        {
            "error": {
                "kind": "Refused",
                "message": "--iter: no iterations; found 'x'; expected N, A..B, A.. or ..B",
                "key": "--iter",
                "found": "'x'",
                "expected": "N, A..B, A.. or ..B",
            }
        },
    ),
    (f"show {PLAIN}", 0, {**PLAIN_DOCUMENT, **ENGINES}, None),
    (f"path {PLAIN}", 0, {"digest": PLAIN, "path": f"<root>/home/adapters/{PLAIN[7:9]}/{PLAIN[7:]}"}, None),
    (f"get {PLAIN} --to got", 0, {"digest": PLAIN, "directory": "<root>/got"}, None),
    (
        f"view shown {PLAIN} --for vllm",
        0,
        {
            "directory": "<root>/shown",
            "engine": "vllm",
            "adapters": [{"digest": PLAIN, "name": PLAIN[7:], "outcome": "added"}],
            "removed": [],
            "left_out": [],
            "bases": [{"base": "org/base", "adapters": 1}],
        },
        None,
    ),
    (
        f"view shown {STRONG} --for vllm --max-rank 3",
        2,
        {
            "directory": "<root>/shown",
            "engine": "vllm",
            "adapters": [],
            "removed": [PLAIN],
            "left_out": [
                {
                    "digest": STRONG,
                    "kind": "Refused",
                    "message": f"{STRONG}: {TOO_HIGH}. {MERGE}",
                    "key": STRONG,
                    "hint": MERGE,
                }
            ],
            "bases": [],
        },
        None,
    ),
    (
        f"get {PLAIN} --to got",
        2,
        None,
        {
            "error": {
                "kind": "OutputExists",
                "message": f"<root>/got: already exists. {TAKEN}",
                "path": "<root>/got",
                "hint": TAKEN,
            }
        },
    ),
    (
        "show 0000",
        3,
        None,
        {"error": {"kind": "NotFound", "message": "0000: no adapter's digest starts with this", "key": "0000"}},
    ),
    (f"alias set prod {PLAIN}", 0, {**move(1, None, PLAIN), "changed": True}, None),
    ("alias set prod run@3", 0, {**move(1, None, PLAIN), "changed": False}, None),
    (f"alias set prod {STRONG} --expect prod", 0, {**move(2, PLAIN, STRONG), "changed": True}, None),
    (
        f"alias set prod {PLAIN} --expect run@latest",
        6,
        None,
        {
            "error": {
                "kind": "Conflict",
                "message": (
                    f"prod: the alias does not name what was expected; found {STRONG}; expected {PLAIN}. {MISPLACED}"
                ),
                "key": "prod",
                "found": STRONG,
                "expected": PLAIN,
                "hint": MISPLACED,
            }
        },
    ),
    ("lineage run", 0, lineage("<run>"), None),
    (f"lineage {PLAIN} --up --format json", 0, lineage("<adapter>"), None),
    (
        "lineage nothing",
        3,
        None,
        {
            "error": {
                "kind": "NotFound",
                "message": "nothing: no adapter, checkpoint, run or file has this name",
                "key": "nothing",
            }
        },
    ),
    ("alias list", 0, {"aliases": [move(2, PLAIN, STRONG)]}, None),
    ("show prod", 0, {**STRONG_DOCUMENT, "aliases": ["prod"], **ENGINES}, None),
    ("alias remove prod", 0, {**move(3, STRONG, None), "changed": True}, None),
    (
        "alias history prod",
        0,
        {"moves": [move(1, None, PLAIN), move(2, PLAIN, STRONG), move(3, STRONG, None)]},
        None,
    ),
    (
        "path prod",
        3,
        None,
        {"error": {"kind": "NotFound", "message": "prod: no alias has this name", "key": "prod"}},
    ),
    ("score list", 0, {"score_runs": []}, None),
    ("score add eval", 0, score_run(new=True), None),
    ("score add eval/run_result.json", 0, score_run(new=False), None),
    ("score add stopped --adapter run@3", 0, {**STOPPED_RUN, "new": True, "left_out": []}, None),
    (
        f"score add eval --adapter {STRONG}",
        2,
        None,
        {
            "error": {
                "kind": "Refused",
                "message": f"--adapter: names another adapter; found {STRONG}; expected {PLAIN}, as {OTHERWISE} says",
                "key": "--adapter",
                "found": STRONG,
                "expected": f"{PLAIN}, as {OTHERWISE} says",
            }
        },
    ),
    ("score list --limit 1", 0, {"score_runs": [STOPPED_RUN]}, None),
    (f"score list {PLAIN}", 0, {"score_runs": [STOPPED_RUN, SCORE_RUN]}, None),
    (f"score list {STRONG}", 0, {"score_runs": []}, None),
    (
        f"show {PLAIN}",
        0,
        {**SCORED_DOCUMENT, **ENGINES},
        None,
    ),
    (
        "score plot run --metric accuracy --to plot.png",
        0,
        {
            "run": "run",
            "metric": "accuracy",
            "path": "plot.png",
            "points": [{"iteration": 3, "digest": PLAIN, "value": 0.41, "verdict": None}],
        },
        None,
    ),
    (
        "score plot run --metric loss --to plot.png",
        3,
        None,
        {
            "error": {
                "kind": "NotFound",
                "message": f"run: loss: {NO_METRIC}; found accuracy, mmlu/law",
                "key": "run: loss",
                "found": "accuracy, mmlu/law",
            }
        },
    ),
    (f"alias set kept {STRONG}", 0, {**move(1, None, STRONG), "alias": "kept", "changed": True}, None),
    (
        f"rm {STRONG}",
        6,
        None,
        {
            "error": {
                "kind": "Conflict",
                "message": f"{STRONG}: the adapter is relied on; found alias kept. {RELIED_ON}",
                "key": STRONG,
                "found": "alias kept",
                "hint": RELIED_ON,
            }
        },
    ),
    (
        f"rm {STRONG} --force --reason old",
        0,
        {
            "digest": STRONG,
            "bytes": "<with the manifest>",
            "reason": "old",
            "overrode": [{"kind": "alias", "name": "kept"}],
            "removed_at": "<time>",
            "record": "<sha256>",
        },
        None,
    ),
    ("list", 0, {"adapters": [{**SCORED_DOCUMENT, "same_tensors": []}]}, None),
    ("db current", 0, {"found": HEAD, "needed": HEAD}, None),
    ("db upgrade", 0, {"found": HEAD, "needed": HEAD}, None),
]


def state() -> dict[str, torch.Tensor]:
    """Tensors that do not depend on a random number generator."""
    return {
        f"layers.{layer}.q_proj.lora_{factor}.weight": torch.arange(24, dtype=torch.float32).reshape(shape)
        for layer in range(2)
        for factor, shape in (("A", (4, 6)), ("B", (6, 4)))
    }


def normal(value: Any, root: str) -> Any:
    """`value` with what differs from run to run replaced."""
    match value:
        case dict():
            manifest = {"bytes": "<with the manifest>"} if "overrode" in value and value["bytes"] > BARE else {}
            return {key: normal(each, root) for key, each in (value | manifest).items()}
        case list():
            return [normal(each, root) for each in value]
        case str() if value not in (PLAIN, STRONG, TENSORS):
            text = value.replace(root, "<root>")
            return next((kind for kind, pattern in VOLATILE if pattern.fullmatch(text)), text)
    return value


def test_every_document_is_as_promised(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run", contents(state()))
    write_checkpoint(tmp_path / "other", contents(state(), alpha=16.5), config={"lora": {}}, manifest=False)
    scores = {"accuracy": 0.41, "mmlu": {"law": 1}, "note": "fine"}
    write_score_run(tmp_path / "eval", result_of(PLAIN, run_id="eval-1", scores=scores))
    stop = {"reason": "out of time", "detail": {"at": 3}}
    write_score_run(tmp_path / "stopped", result_of(scores={"pass@1": 0.9}, stop=stop), {"model": {}})
    cli = CommandLine(tmp_path / "home")
    commands = [[*command.split(), "--json"] for command, *_ in DOCUMENTS]
    for (command, code, stdout, stderr), done in zip(DOCUMENTS, run_each(cli, commands, tmp_path), strict=True):
        found = [normal(json.loads(text), str(tmp_path)) if text else None for text in (done.out, done.err)]
        assert (command, done.code, *found) == (command, code, stdout, stderr)
        for document, promised in zip(found, (stdout, stderr), strict=True):
            assert json.dumps(document) == json.dumps(promised), "in the promised order, and 8 is not 8.0"
