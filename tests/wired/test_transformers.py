"""What transformers' own Trainer saves of a peft model that it really trains, taken as a whole run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from registry import Registry
from registry.core.layout import CONFIG, WEIGHTS
from tests.support.merging import llama, load_adapted, load_model, logits, make_base

pytestmark = pytest.mark.slow


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Some text to learn by heart."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(12) * (index + 3)) % 64
        return {"input_ids": tokens, "labels": tokens}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, PeftModel]:
    """The base, the output directory with checkpoints of steps 2 and 4, and the model as it was at the end."""
    root = tmp_path_factory.mktemp("trained")
    base = make_base(root / "base", llama(), dtype=torch.float32)
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(load_model(base), config)
        arguments = TrainingArguments(
            output_dir=str(root / "out"),
            max_steps=4,
            save_steps=2,
            per_device_train_batch_size=2,
            learning_rate=0.01,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
    return base, root / "out", model.eval()


def test_its_run_is_added_by_step_and_kept_byte_for_byte(trained: tuple[Path, Path, PeftModel], home: Path) -> None:
    base, out, _ = trained
    registry = Registry(home)
    found = list(registry.add_run(out, run="sft"))
    assert [(each.step, each.state.value) for each in found] == [(2, "added"), (4, "added")]
    for each in found:
        assert each.added is not None
        manifest = each.added.manifest
        assert (manifest["checkpoint"]["reader"], manifest["derived"]) == ("transformers", None)
        assert (manifest["run"]["iteration"], manifest["base"]["name"]) == (each.step, str(base))
        stored = Path(registry.path(str(each.digest)))
        for name in (WEIGHTS, CONFIG):
            assert (stored / name).read_bytes() == (out / f"checkpoint-{each.step}" / name).read_bytes()
    assert json.loads((out / "checkpoint-4" / "trainer_state.json").read_text())["global_step"] == 4
    assert {each.state.value for each in registry.add_run(out, run="sft")} == {"known"}


def test_peft_computes_with_it_what_the_trainer_computed(
    trained: tuple[Path, Path, PeftModel], home: Path, tmp_path: Path
) -> None:
    base, out, model = trained
    registry = Registry(home)
    got = registry.get(str(registry.add(out / "checkpoint-4").digest), tmp_path / "got")
    assert torch.equal(logits(load_adapted(base, Path(got))), logits(model))
    assert not torch.equal(logits(load_model(base)), logits(model)), "or nothing was trained"
