"""What torch and the allocators raise leaves as an error of ours, whichever thread it was raised in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from registry import Registry
from registry.core.errors import StorageError
from registry.served.runtime import calculating
from tests.support.process import CommandLine
from tests.support.runs import contents, write_checkpoint

ROWS, COLUMNS, MODULE = 40_000, 20_000, "h.0.attn.c_attn"
LIMITED = """
import resource, sys
import torch
from pathlib import Path
from registry.cli import main
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main()
"""


def large_base(directory: Path) -> Path:
    """A model of one matrix of 1.5 GiB of zeros, which take no room on the disk."""
    directory.mkdir()
    size = ROWS * COLUMNS * 2
    entry = {"dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [0, size]}
    header = json.dumps({f"{MODULE}.weight": entry}).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    (directory / "config.json").write_text('{"model_type": "gpt2"}')  # [in, out]: it is merged whole
    return directory


@pytest.mark.parametrize("command", ["merge", "compare"])
def test_too_little_memory_exits_7_with_one_line(command: str, cli: CommandLine, tmp_path: Path) -> None:
    base = large_base(tmp_path / "base")
    factors = {f"{MODULE}.lora_A.weight": torch.ones(4, ROWS), f"{MODULE}.lora_B.weight": torch.ones(COLUMNS, 4)}
    digest = Registry(cli.home).add(write_checkpoint(tmp_path / "run", contents(factors))).digest.hex
    more = ["--to", tmp_path / "out"] if command == "merge" else ["--served", base / "model.safetensors"]
    arguments = [command, digest, "--base", base, *more]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=cli.environment(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, ""), done.stderr
    assert done.stderr.splitlines()[-1].startswith("aorlta-reg: ")
    assert "memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_torch_says_is_told_in_one_line() -> None:
    with pytest.raises(StorageError, match="torch could not calculate this; found mat1 and mat2"), calculating():
        torch.ones(2, 3) @ torch.ones(2, 3)
    with pytest.raises(StorageError, match="torch could not calculate this; found") as raised, calculating():
        torch.empty(1 << 50)
    assert "\n" not in str(raised.value)
