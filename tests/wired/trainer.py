"""The trainer: iterations of sample, update, merge, serve, save, on a tiny Qwen3.5 base with an fp32 LoRA.

`train` is the whole interface; `main` is the same on the command line (`python tests/wired/train.py --help`).
"""

import argparse
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from . import layout, lora, policy
from .base import load_base, make_base

LEARNING_RATE = 3e-2


@dataclass(frozen=True)
class Iteration:
    """What one iteration computed and wrote."""

    number: int
    loss: float
    reward: float
    latent: dict[str, Tensor]
    """fp32 `<module>.lora_A.weight` [r, in] and `<module>.lora_B.weight` [out, r], after the update."""
    logits: Tensor
    """bfloat16 [2, 16, 256]: the policy after the update, on `probe()`."""
    checkpoint: Path
    """`RUN_DIR/ckpt/iter-<n>`."""
    served: dict[str, Path]
    """Engine to the file in `RUN_DIR/served/iter-<n>` that says what it was given."""


@dataclass(frozen=True)
class TrainedRun:
    """A finished run; `iterations[0]` is iter-1."""

    run_dir: Path
    base_dir: Path
    run_id: str
    r: int
    alpha: float
    iterations: tuple[Iteration, ...]

    @property
    def last(self) -> Iteration:
        return self.iterations[-1]


def probe() -> Tensor:
    """A fixed batch of tokens, int64 [2, 16], on which policies are compared."""
    return (torch.arange(32) * 37 % 256).view(2, 16)


def train(
    run_dir: Path,
    base_dir: Path,
    *,
    iterations: int = 3,
    r: int = 4,
    alpha: float = 8,
    seed: int = 0,
    run_id: str = "wired",
    stochastic_rounding: bool = False,
    engines: Sequence[str] = ("engine-0",),
    withhold: Collection[str] = (),
    served: layout.Served = "tensors",
    warm_start: Path | None = None,
    base_name: str | None = None,
    report: Callable[[Iteration], None] | None = None,
) -> TrainedRun:
    """Train a LoRA on the base in `base_dir` (made there if it holds none) and write the run to `run_dir`.

    `withhold` names engines that are served the base instead of the merged weights. `warm_start` is a PEFT adapter
    directory with this r and alpha. `base_name` is what the run's config calls the base, if not its path. `report` is
    called after each iteration. On one machine and one thread count the same arguments give the same tensors; global
    random state is left as it was.
    Raises ValueError for contradicting arguments, FileExistsError where `run_dir` already holds a run.
    """
    if unknown := set(withhold) - set(engines):
        raise ValueError(f"withhold names no engine of this run: {sorted(unknown)}")
    if (run_dir / "ckpt").exists():
        raise FileExistsError(run_dir / "ckpt")
    if not (base_dir / "model.safetensors").exists():
        make_base(base_dir)
    model, base = load_base(base_dir)
    generator = torch.Generator().manual_seed(seed)
    chooser = random.Random(seed)
    scaling = alpha / r
    latent = lora.attach(model, r=r, scaling=scaling, generator=generator)
    start = None if warm_start is None else _start_from(warm_start, latent, r=r, alpha=alpha)
    rounding = lora.round_nearest
    if stochastic_rounding:
        rounding = partial(lora.round_stochastic, generator=torch.Generator().manual_seed(seed + 1))

    run_dir.mkdir(parents=True, exist_ok=True)
    source = {
        "base": base_name or str(base_dir.resolve()),
        "revision": layout.file_sha256(base_dir / "model.safetensors"),
    }
    config = {
        "run_id": run_id,
        "model": source if start is None else {**source, "adapter": f"sha256:{start}"},
        "lora": {"r": r, "alpha": alpha},
        "sync": {"stochastic_rounding": stochastic_rounding},
    }
    layout.write_json(run_dir / "config.json", config)

    optimizer = torch.optim.AdamW(latent.values(), lr=LEARNING_RATE)
    done: list[Iteration] = []
    for number in range(1, iterations + 1):
        loss, reward = _update(model, optimizer, policy.prompts(chooser), generator)
        snapshot = {name: tensor.detach().clone() for name, tensor in latent.items()}
        merged = lora.merge(base, snapshot, scaling, rounding)
        given = {engine: base if engine in withhold else merged for engine in engines}
        served_files = layout.write_served(
            run_dir / "served" / f"iter-{number}",
            given,
            form=served,
            iteration=number,
            rounding="stochastic" if stochastic_rounding else "nearest",
        )
        checkpoint = run_dir / "ckpt" / f"iter-{number}"
        payload = {
            "iteration": number,
            "step": number,
            "lora": {"r": r, "alpha": alpha, "state": snapshot},
            "optimizer": optimizer.state_dict(),
            "rng": {"torch": generator.get_state(), "python": chooser.getstate()},
            "loss": loss,
            "reward": reward,
        }
        layout.write_checkpoint(checkpoint, payload)
        with torch.no_grad():
            logits = model(probe()).logits
        done.append(Iteration(number, loss, reward, snapshot, logits, checkpoint, served_files))
        if report is not None:
            report(done[-1])
    return TrainedRun(run_dir, base_dir, run_id, r, alpha, tuple(done))


def _update(
    model: Qwen3_5ForCausalLM, optimizer: torch.optim.Optimizer, prompts: Tensor, generator: torch.Generator
) -> tuple[float, float]:
    """One on-policy step; return its loss, and the mean reward of the policy before it."""
    tokens = policy.sample(model, prompts, generator)
    rewards = policy.rewards(tokens)
    optimizer.zero_grad()
    loss = policy.loss(model, tokens, rewards)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.item(), rewards.mean().item()


def _start_from(adapter: Path, latent: Mapping[str, Tensor], *, r: int, alpha: float) -> str:
    """Copy the adapter's tensors into `latent`; return the adapter's digest."""
    tensors, adapter_r, adapter_alpha, digest = layout.read_adapter(adapter)
    if (adapter_r, adapter_alpha) != (r, alpha):
        raise ValueError(f"{adapter}: r, alpha are {adapter_r}, {adapter_alpha}; this run has {r}, {alpha}")
    if tensors.keys() != latent.keys():
        raise ValueError(f"{adapter}: other modules than this run's: {sorted(tensors.keys() ^ latent.keys())}")
    with torch.no_grad():
        for name, tensor in latent.items():
            tensor.copy_(tensors[name])
    return digest


def main(arguments: Sequence[str] | None = None) -> None:
    """Train from the command line; print one line an iteration."""
    parser = argparse.ArgumentParser(description="Train a tiny LoRA and write an aorlta run directory.")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--base", type=Path, required=True, metavar="BASE_DIR", help="made if it holds no weights")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--r", type=int, default=4)
    parser.add_argument("--alpha", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-id", default="wired")
    parser.add_argument("--stochastic-rounding", action="store_true")
    parser.add_argument("--engine", action="append", metavar="NAME", help="repeatable; default engine-0")
    parser.add_argument("--withhold", action="append", default=[], metavar="NAME", help="serve this engine the base")
    parser.add_argument("--served", choices=("tensors", "digests"), default="tensors")
    parser.add_argument("--warm-start", type=Path, metavar="ADAPTER_DIR")
    given = parser.parse_args(arguments)
    logging.getLogger("transformers").setLevel(logging.ERROR)  # else it announces its slow CPU kernels
    train(
        given.run_dir,
        given.base,
        iterations=given.iterations,
        r=given.r,
        alpha=given.alpha,
        seed=given.seed,
        run_id=given.run_id,
        stochastic_rounding=given.stochastic_rounding,
        engines=given.engine or ("engine-0",),
        withhold=given.withhold,
        served=given.served,
        warm_start=given.warm_start,
        report=_print_line,
    )


def _print_line(done: Iteration) -> None:
    print(f"iter-{done.number}  loss {done.loss:+.3f}  reward {done.reward:.3f}  {done.checkpoint}")


if __name__ == "__main__":
    main()
