"""`make demo`: the main job end to end, on a LoRA that is really trained here, with every command as it is typed."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import tempfile
import warnings
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file

from tests.wired.base import load_base
from tests.wired.evaluation import evaluate
from tests.wired.lora import merge, round_nearest
from tests.wired.trainer import Iteration, TrainedRun, probe, train

ITERATIONS = 3
BASE = Path("base")
BASE_NAME = "tiny-qwen3.5"


def main() -> None:
    """Train, add, look, score, train on, and load what came out."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="aorlta-demo-"))
    os.chdir(directory)
    os.environ["AORLTA_REG_HOME"] = str(directory / "registry")
    trained, digests = first_run()
    served(trained, digests)
    best = score(trained, digests)
    second_run(best)
    say("The index is derived from records in the store. Lose it, and nothing is lost.")
    shell("rm", "registry/index.sqlite")
    shell("aorlta-reg", "alias", "list")
    shell("aorlta-reg", "reindex")
    say("Anyone who has the hash gets those bytes, and no others.")
    shell("aorlta-reg", "get", digests[-1], "--to", "adapter")
    shell("ls", "-l", "adapter")
    say("What came out, held against the trainer's own tensors, the served weights, and peft:")
    check(trained, Path("adapter"))
    print(f"\nAll of it is in {directory}; remove it when you have seen enough.")


def first_run() -> tuple[TrainedRun, list[str]]:
    """Train a run and add its checkpoints; the adapters' digests."""
    say("An RL run on CPU: a tiny Qwen3.5 policy, its LoRA in fp32, merged weights served after every iteration.")
    trained = train(Path("first"), BASE, iterations=ITERATIONS, run_id="first", base_name=BASE_NAME, report=report)
    say("Every checkpoint becomes an adapter that is named by its hash. Adding one again changes nothing.")
    digests = add(trained)
    shell("aorlta-reg", "add", str(trained.last.checkpoint))
    shell("aorlta-reg", "list")
    shell("aorlta-reg", "show", digests[-1][:19])
    return trained, digests


def served(trained: TrainedRun, digests: list[str]) -> None:
    """Hold the adapters against what the engines were given."""
    say("Were the engines really given this adapter? Its verdict is kept with it.")
    given = Path("first/served") / trained.last.checkpoint.name
    shell("aorlta-reg", "compare", digests[-1][:19], "--base", str(BASE), "--served", str(given))
    say("The same run, but one of its two engines is never given the adapter.")
    broken = train(
        Path("broken"),
        BASE,
        iterations=1,
        run_id="broken",
        base_name=BASE_NAME,
        engines=("engine-0", "engine-1"),
        withhold=("engine-1",),
        report=report,
    )
    shell("aorlta-reg", "add", str(broken.last.checkpoint), "--base", str(BASE), expect=5)


def score(trained: TrainedRun, digests: list[str]) -> str:
    """Score a run's adapters by hash, and name the best one; its digest."""
    say("Score runs name their adapter by hash, load it from where `aorlta-reg path` says, and are linked back to it.")
    for digest, iteration in zip(digests, trained.iterations, strict=True):
        evaluate_by_hash(Path(f"eval/first-{iteration.number}"), digest)
    ranked = shell("aorlta-reg", "list", "--sort", "score:reward", "--limit", "3")
    best = next(digest for digest in digests if digest[7:19] == ranked.splitlines()[1].partition(" ")[0])
    shell("aorlta-reg", "alias", "set", "best", best[:19])
    return best


def second_run(best: str) -> None:
    """Train on from the best adapter, and see where everything came from."""
    say("A second run starts from the best adapter. Its config names it, so the registry knows.")
    start = shell("aorlta-reg", "path", "best").strip()
    trained = train(
        Path("second"),
        BASE,
        iterations=2,
        seed=1,
        run_id="second",
        base_name=BASE_NAME,
        warm_start=Path(start),
        report=report,
    )
    digests = add(trained)
    evaluate_by_hash(Path("eval/second-2"), digests[-1])
    shell("aorlta-reg", "lineage", best[:19])
    shell("aorlta-reg", "find", "--run", "second", "--score", "reward>0.1")


def add(trained: TrainedRun) -> list[str]:
    """Add every checkpoint of a run; the adapters' digests."""
    printed = shell("aorlta-reg", "add", *(str(iteration.checkpoint) for iteration in trained.iterations))
    return [line for line in printed.splitlines() if line.startswith("sha256:")]


def evaluate_by_hash(run_dir: Path, digest: str) -> None:
    """Evaluate what the registry gives for a hash, and add the result."""
    adapter_dir = subprocess.run(["aorlta-reg", "path", digest], capture_output=True, text=True, check=True).stdout
    scores = evaluate(run_dir, BASE, digest, Path(adapter_dir.strip()))
    print(f"  {run_dir}: " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()), flush=True)
    shell("aorlta-reg", "score", "add", str(run_dir))


def check(trained: TrainedRun, adapter: Path) -> None:
    """Hold the fetched adapter against what the trainer had in memory; any difference is an AssertionError."""
    last = trained.last
    exported = load_file(adapter / "adapter_model.safetensors")
    latent = {f"base_model.model.{name}": tensor for name, tensor in last.latent.items()}
    assert exported.keys() == latent.keys()
    assert all(torch.equal(exported[name].view(torch.int32), latent[name].view(torch.int32)) for name in latent)
    print(f"  exported tensors == the trainer's fp32 latent, bit for bit: {len(latent)} of {len(latent)}")

    model, base = load_base(trained.base_dir)
    factors = {name.removeprefix("base_model.model."): tensor for name, tensor in exported.items()}
    merged = merge(base, factors, trained.alpha / trained.r, round_nearest)
    (served,) = map(load_file, last.served.values())
    assert served.keys() == merged.keys()
    assert all(torch.equal(served[name], merged[name]) for name in served)
    print(f"  base merged with the adapter == what the engine was served, bit for bit: {len(served)} of {len(served)}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft still asks transformers for a deprecated attribute
        loaded = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        logits = loaded(probe()).logits
    assert torch.equal(logits, last.logits)
    print(f"  peft's logits == the trainer's, bit for bit: {logits.numel()} of {logits.numel()}")


def say(text: str) -> None:
    """A heading."""
    print(f"\n# {text}", flush=True)


def shell(*command: str, expect: int = 0) -> str:
    """Show a command, run it, show what it prints, and its exit code if it is not 0; what it printed is returned."""
    print(f"$ {shlex.join(command)}", flush=True)
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    assert process.returncode == expect, f"exit {process.returncode}"
    if expect:
        print(f"(exit {expect})", flush=True)
    return "".join(lines)


def report(done: Iteration) -> None:
    """One line per iteration."""
    print(
        f"  iteration {done.number}: loss {done.loss:+.3f}, reward {done.reward:.3f} -> {done.checkpoint}", flush=True
    )


if __name__ == "__main__":
    main()
