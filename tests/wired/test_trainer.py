"""The wired trainer is what it claims to be, checked without `registry`: the rest of the suite leans on its files."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3_5ForCausalLM

from .trainer import TrainedRun, probe, train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wired") / "base"


@pytest.fixture(scope="module")
def run(base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("wired") / "run", base_dir)


@pytest.fixture(scope="module")
def stochastic(base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("wired") / "run", base_dir, iterations=1, stochastic_rounding=True)


def load_checkpoint(directory: Path) -> dict[str, object]:
    loaded: dict[str, object] = torch.load(directory / "trainer.pt", weights_only=True)
    return loaded


def saved_latent(directory: Path) -> dict[str, Tensor]:
    lora = load_checkpoint(directory)["lora"]
    assert isinstance(lora, dict)
    latent: dict[str, Tensor] = lora["state"]
    return latent


def modules(latent: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(".lora_A.weight") for name in latent if name.endswith(".lora_A.weight")]


def exact_merge(base_dir: Path, latent: Mapping[str, Tensor], scaling: float) -> dict[str, Tensor]:
    """The targeted weights before any rounding, fp32."""
    base = load_file(base_dir / "model.safetensors")
    return {
        f"{module}.weight": base[f"{module}.weight"].float()
        + scaling * (latent[f"{module}.lora_B.weight"] @ latent[f"{module}.lora_A.weight"])
        for module in modules(latent)
    }


def write_adapter(directory: Path, latent: Mapping[str, Tensor], *, r: int, alpha: float) -> Path:
    """A PEFT adapter directory, made with the stock writer."""
    directory.mkdir()
    save_file(
        {f"base_model.model.{name}": tensor for name, tensor in latent.items()}, directory / "adapter_model.safetensors"
    )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules(latent),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def peft_logits(base_dir: Path, adapter: Path) -> Tensor:
    base = Qwen3_5ForCausalLM.from_pretrained(base_dir, dtype=torch.bfloat16)
    with torch.no_grad():
        logits: Tensor = PeftModel.from_pretrained(base, str(adapter))(input_ids=probe()).logits
    return logits


def test_served_weights_are_the_fp32_merge_of_the_checkpoint_rounded_once(run: TrainedRun) -> None:
    base = load_file(run.base_dir / "model.safetensors")
    for iteration in run.iterations:
        exact = exact_merge(run.base_dir, saved_latent(iteration.checkpoint), run.alpha / run.r)
        served = load_file(iteration.served["engine-0"])
        assert served.keys() == base.keys()
        for name, tensor in served.items():
            expected = exact[name].to(torch.bfloat16) if name in exact else base[name]
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor, expected), name


def test_training_moves_every_module_from_the_first_iteration_on(run: TrainedRun) -> None:
    base = load_file(run.base_dir / "model.safetensors")
    served = load_file(run.iterations[0].served["engine-0"])
    latent = run.iterations[0].latent
    for module in modules(latent):
        assert latent[f"{module}.lora_B.weight"].abs().min() > 0
        moved = (served[f"{module}.weight"] != base[f"{module}.weight"]).float().mean()
        assert moved > 0.5, module
    assert {module.split(".")[3] for module in modules(latent)} == {"linear_attn", "self_attn", "mlp"}


def test_training_raises_the_reward(base_dir: Path, tmp_path: Path) -> None:
    rewards = [iteration.reward for iteration in train(tmp_path / "run", base_dir, iterations=12).iterations]
    assert sum(rewards[-3:]) > 2 * sum(rewards[:3])


def test_checkpoint_holds_the_latent_and_everything_needed_to_go_on(run: TrainedRun) -> None:
    for number, iteration in enumerate(run.iterations, start=1):
        payload = load_checkpoint(iteration.checkpoint)
        assert iteration.checkpoint == run.run_dir / "ckpt" / f"iter-{number}"
        assert payload["iteration"] == payload["step"] == iteration.number == number
        assert payload.keys() >= {"lora", "optimizer", "rng"}
        assert isinstance(payload["lora"], dict)
        assert (payload["lora"]["r"], payload["lora"]["alpha"]) == (4, 8)
        saved = saved_latent(iteration.checkpoint)
        assert saved.keys() == iteration.latent.keys()
        for name, tensor in iteration.latent.items():
            assert tensor.dtype == torch.float32
            assert tensor.shape[0 if "lora_A" in name else 1] == run.r
            assert torch.equal(saved[name], tensor)


def test_manifest_gives_hash_and_size_of_the_checkpoint(run: TrainedRun) -> None:
    for iteration in run.iterations:
        content = (iteration.checkpoint / "trainer.pt").read_bytes()
        manifest = json.loads((iteration.checkpoint / "manifest.json").read_text(encoding="utf-8"))
        expected = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        assert manifest["files"] == {"trainer.pt": expected}
        assert 100_000 < len(content) < 500_000


def test_config_says_what_the_run_was(run: TrainedRun, stochastic: TrainedRun) -> None:
    config = json.loads((run.run_dir / "config.json").read_text(encoding="utf-8"))
    base_digest = hashlib.sha256((run.base_dir / "model.safetensors").read_bytes()).hexdigest()
    assert config == {
        "run_id": run.run_id,
        "model": {"base": str(run.base_dir.resolve()), "revision": base_digest},
        "lora": {"r": 4, "alpha": 8},
        "sync": {"stochastic_rounding": False},
    }
    stochastic_config = json.loads((stochastic.run_dir / "config.json").read_text(encoding="utf-8"))
    assert stochastic_config["sync"] == {"stochastic_rounding": True}


def test_peft_gives_the_trainers_logits_bit_for_bit(run: TrainedRun, tmp_path: Path) -> None:
    for iteration in run.iterations:
        latent = saved_latent(iteration.checkpoint)
        adapter = write_adapter(tmp_path / f"iter-{iteration.number}", latent, r=run.r, alpha=run.alpha)
        logits = peft_logits(run.base_dir, adapter)
        assert logits.dtype == iteration.logits.dtype == torch.bfloat16
        assert torch.equal(logits, iteration.logits)


def test_peft_with_another_alpha_gives_other_logits(run: TrainedRun, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", saved_latent(run.last.checkpoint), r=run.r, alpha=run.alpha + 1)
    assert not torch.equal(peft_logits(run.base_dir, adapter), run.last.logits)


def test_stochastic_rounding_is_unbiased_between_the_two_neighbours(stochastic: TrainedRun) -> None:
    exact = exact_merge(stochastic.base_dir, stochastic.last.latent, stochastic.alpha / stochastic.r)
    served = load_file(stochastic.last.served["engine-0"])
    bits = torch.cat([exact[name].view(torch.int32).flatten() for name in exact])
    served_bits = torch.cat([served[name].float().view(torch.int32).flatten() for name in exact])
    low = bits & 0xFFFF
    steps = (served_bits - (bits - low)) / 0x10000  # 0: the neighbour nearer zero; 1: the next one
    assert set(steps.tolist()) == {0, 1}
    assert not steps[low == 0].any()
    odds = low.double() / 0x10000
    deviation = (odds * (1 - odds)).sum().sqrt()
    assert (steps.double() - odds).sum().abs() < 4 * deviation
    assert ((steps == 1) != (odds > 0.5)).float().mean() > 0.2  # nearest never goes to the far neighbour


def test_digests_describe_the_tensors_and_a_withheld_engine_got_the_base(base_dir: Path, tmp_path: Path) -> None:
    engines = ("engine-0", "engine-1")
    as_tensors = train(tmp_path / "tensors", base_dir, iterations=1, engines=engines, withhold=["engine-1"])
    as_digests = train(
        tmp_path / "digests", base_dir, iterations=1, engines=engines, withhold=["engine-1"], served="digests"
    )
    base = load_file(base_dir / "model.safetensors")
    tensors = {engine: load_file(as_tensors.last.served[engine]) for engine in engines}
    assert all(torch.equal(tensors["engine-1"][name], base[name]) for name in base)
    assert not all(torch.equal(tensors["engine-0"][name], base[name]) for name in base)
    for engine in engines:
        told = json.loads(as_digests.last.served[engine].read_text(encoding="utf-8"))
        assert told.pop("tensors") == {
            name: {
                "sha256": hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest(),
                "shape": list(tensor.shape),
            }
            for name, tensor in tensors[engine].items()
        }
        assert told == {
            "engine": engine,
            "iteration": 1,
            "rounding": "nearest",
            "device": "cpu",
            "threads": torch.get_num_threads(),
            "dtype": "bfloat16",
        }


def test_the_digest_file_of_a_single_engine_has_the_plain_name(base_dir: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", base_dir, iterations=1, served="digests", stochastic_rounding=True)
    assert run.last.served == {"engine-0": run.run_dir / "served" / "iter-1" / "served-weights.json"}
    assert json.loads(run.last.served["engine-0"].read_text(encoding="utf-8"))["rounding"] == "stochastic"


def test_the_same_seed_gives_the_same_run_and_leaves_global_random_state_alone(run: TrainedRun, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    again = train(tmp_path / "again", run.base_dir)
    assert torch.equal(torch.get_rng_state(), before)
    other = train(tmp_path / "other", run.base_dir, iterations=1, seed=1)
    for first, second in zip(run.iterations, again.iterations, strict=True):
        one, two = saved_latent(first.checkpoint), saved_latent(second.checkpoint)
        assert all(torch.equal(one[name], two[name]) for name in one)
        assert torch.equal(first.logits, second.logits)
    assert not torch.equal(other.last.logits, run.iterations[0].logits)


def test_warm_start_continues_from_an_adapter_and_names_it(run: TrainedRun, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", run.last.latent, r=run.r, alpha=run.alpha)
    warm = train(tmp_path / "warm", run.base_dir, iterations=1, warm_start=adapter)
    config = json.loads((warm.run_dir / "config.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert config["model"]["adapter"] == f"sha256:{digest}"
    for name, tensor in run.last.latent.items():
        step = (warm.last.latent[name] - tensor).abs().max()
        assert 0 < step < 0.05, name  # AdamW's first step is at most the learning rate, 0.03, and its weight decay


def test_contradicting_arguments_and_an_existing_run_are_refused(run: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="engine-9"):
        train(tmp_path / "run", run.base_dir, withhold=["engine-9"])
    adapter = write_adapter(tmp_path / "adapter", run.last.latent, r=run.r, alpha=run.alpha)
    with pytest.raises(ValueError, match="r, alpha are 4, 8"):
        train(tmp_path / "run", run.base_dir, alpha=16, warm_start=adapter)
    with pytest.raises(FileExistsError):
        train(run.run_dir, run.base_dir, iterations=1, run_id="late")
    assert "late" not in (run.run_dir / "config.json").read_text(encoding="utf-8")


def test_the_script_runs_from_any_directory_and_prints_a_line_an_iteration(base_dir: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("train.py")
    arguments = ["run", "--base", str(base_dir), "--iterations", "2", "--engine", "a", "--engine", "b"]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["iter-1", "iter-2"]
    assert done.stderr == ""
    assert sorted(path.name for path in (tmp_path / "run" / "served" / "iter-2").iterdir()) == [
        "a.safetensors",
        "b.safetensors",
    ]
