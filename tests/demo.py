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
from tests.wired.lora import merge, round_nearest
from tests.wired.trainer import Iteration, TrainedRun, probe, train

ITERATIONS = 3


def main() -> None:
    """Train, add, look, get, and load what came out."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="aorlta-demo-"))
    os.chdir(directory)
    os.environ["AORLTA_REG_HOME"] = str(directory / "registry")
    say("An RL run on CPU: a tiny Qwen3.5 policy, its LoRA in fp32, merged weights served after every iteration.")
    trained = train(
        Path("run"), Path("base"), iterations=ITERATIONS, run_id="demo", base_name="tiny-qwen3.5", report=report
    )
    say("Every checkpoint becomes an adapter that is named by its hash. Adding one again changes nothing.")
    checkpoints = [str(iteration.checkpoint) for iteration in trained.iterations]
    printed = shell("aorlta-reg", "add", *checkpoints)
    digests = [line for line in printed.splitlines() if line.startswith("sha256:")]
    shell("aorlta-reg", "add", checkpoints[-1])
    shell("aorlta-reg", "list")
    shell("aorlta-reg", "show", digests[-1][:19])
    say("Were the engines really given this adapter? Its verdict is kept with it.")
    served = Path("run/served") / checkpoints[-1].rpartition("/")[2]
    shell("aorlta-reg", "compare", digests[-1][:19], "--base", "base", "--served", str(served))
    say("The same run, but one of its two engines is never given the adapter.")
    broken = train(
        Path("broken"),
        Path("base"),
        iterations=1,
        run_id="broken",
        base_name="tiny-qwen3.5",
        engines=("engine-0", "engine-1"),
        withhold=("engine-1",),
        report=report,
    )
    shell("aorlta-reg", "add", str(broken.last.checkpoint), "--base", "base", expect=5)
    say("Anyone who has the hash gets those bytes, and no others.")
    shell("aorlta-reg", "get", digests[-1], "--to", "adapter")
    shell("ls", "-l", "adapter")
    say("What came out, held against the trainer's own tensors, the served weights, and peft:")
    check(trained, Path("adapter"))
    print(f"\nAll of it is in {directory}; remove it when you have seen enough.")


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
