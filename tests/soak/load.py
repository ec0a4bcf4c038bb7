"""Many commands at once on one home, some of them killed at any time, and readers beside them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.soak.invariants import readable
from tests.support import forked

_KILLED = 0.15
_LONGEST = 0.4  # seconds after which a command that is to be killed is
_READER = "read"
_ALLOWED: dict[str, tuple[int, ...]] = {"rm": (0, 3), "get": (0, 3), "alias": (0, 3), _READER: (0,)}


@dataclass
class _Child:
    kind: str
    what: str
    output: Path
    killed_at: float | None
    target: Path | None = None


def main() -> None:
    """Run for some seconds on the home of a plan and print what happened, as JSON.

    Nothing of a registry is opened in this process: what it forks must not inherit a database.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=json.loads)
    plan = parser.parse_args().plan
    random, scratch = Random(plan["seed"]), Path(plan["scratch"])
    children: dict[int, _Child] = {}
    done: dict[str, Any] = {"operations": Counter(), "killed": 0, "reads": 0, "failed": [], "corrupt": [], "ends": []}
    ends, number = time.monotonic() + plan["seconds"], 0
    while children or time.monotonic() < ends:
        while len(children) < plan["processes"] and time.monotonic() < ends:
            number += 1
            kind, what, arguments, target = _choose(random, plan, number, scratch / f"out{number}")
            output = scratch / f"told{number}"
            dying = kind != _READER and random.random() < _KILLED
            pid = os.fork()
            if pid == 0:
                _become(kind, arguments, output, plan)
            at = time.monotonic() + random.random() * _LONGEST if dying else None
            children[pid] = _Child(kind, what, output, at, target)
        for pid, child in list(children.items()):
            if child.killed_at is not None and time.monotonic() >= child.killed_at:
                child.killed_at = None
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del children[pid]
                _account(child, os.waitstatus_to_exitcode(status), done)
        time.sleep(0.002)
    print(json.dumps(done))


def _choose(random: Random, plan: dict[str, Any], number: int, out: Path) -> tuple[str, str, list[str], Path | None]:
    """One of each first, so that no crowd is too short for any; then by weight."""
    stable, volatile = plan["stable"], plan["volatile"]
    kept, gone = random.choice([*stable]), random.choice([*volatile])
    home = ["--home", plan["home"], "--json"]
    alias, score = random.choice(("prod", "best")), random.choice([*plan["scores"]])
    actions: list[tuple[int, str, str, list[str], Path | None]] = [
        (5, "add", stable[kept], ["add", kept, *home], None),
        (3, "add", volatile[gone], ["add", gone, *home], None),
        (2, "rm", volatile[gone], ["rm", volatile[gone], "--force", *home], None),
        (3, "get", stable[kept], ["get", stable[kept], "--to", str(out), *home], out),
        (1, "get", volatile[gone], ["get", volatile[gone], "--to", str(out), *home], out),
        (4, "alias", alias, ["alias", "set", alias, stable[kept], *home], None),
        (1, "alias", alias, ["alias", "remove", alias, *home], None),
        (2, "score", score, ["score", "add", score, *home], None),
        (2, "list", "", ["list", *home], None),
        (1, "reindex", "", ["reindex", *home], None),
        (3, _READER, "", [], None),
        (1, "verify", "", ["verify", "--all", *home], None),
        (1, "verify --repair", "", ["verify", "--all", "--repair", *home], None),
        (2, "gc", "", ["gc", "--keep-last", "1", *home], None),
    ]
    if number > len(actions):
        actions = random.choices(actions, [each[0] for each in actions])
    return actions[min(number, len(actions)) - 1][1:]


def _become(kind: str, arguments: list[str], output: Path, plan: dict[str, Any]) -> None:
    if kind != _READER:
        forked.run("none", 1, arguments, str(output))
    reads, found = readable(Path(plan["home"]), volatile=plan["volatile"].values())
    output.write_text(json.dumps({"reads": reads, "found": [each.what for each in found]}))
    os._exit(0)


def _account(child: _Child, code: int, done: dict[str, Any]) -> None:
    text = child.output.read_text(errors="replace") if child.output.exists() else ""
    child.output.unlink(missing_ok=True)
    done["operations"][child.kind] += 1
    if code == -9:
        done["killed"] += 1
    elif code not in _ALLOWED.get(child.kind, (0,)) or "Traceback" in text or "locked" in text:
        done["failed"].append(f"{child.kind} {child.what}: exit {code}: {text[-2000:]}")
    elif child.kind == _READER:
        read = json.loads(text)
        done["reads"] += read["reads"]
        done["corrupt"] += read["found"]
    if child.target is not None or code == 0:
        answer = None
        if code == 0 and child.kind in ("add", "alias", "score", "rm"):
            # notes come first, on stderr: the document is the last thing that is printed
            answer, _ = json.JSONDecoder().raw_decode(
                text[text.index("\n{\n") + 1 if not text.startswith("{") else 0 :]
            )
        done["ends"].append([child.kind, child.what, code, child.target and str(child.target), answer])


if __name__ == "__main__":
    forked.load_everything()
    main()
