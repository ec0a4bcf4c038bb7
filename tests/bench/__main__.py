"""`make bench`: prints a table, and writes the same figures to bench.json."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import floor
from tests.bench.measure import Command, alternate, run_once

RUNS = 5
SIZES = {"160 MB": 160_000_000, "1.3 GB": 1_300_000_000}
REGISTRY = (sys.executable, "-m", "registry.cli")
MB = 1_000_000


def main() -> None:
    """Measure everything and report."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="aorlta-bench-", dir=Path.cwd()) as directory:
        for name, size in SIZES.items():
            rows += list(bench_add(Path(directory), name, size))
    print(f"{'what':<34}{'wall s':>8}{'floor s':>9}{'ratio':>7}{'peak MB':>9}{'LoRA MB':>9}")
    for row in rows:
        print(
            f"{row['what']:<34}{row['seconds']:>8.2f}{row['floor_seconds']:>9.2f}{row['ratio']:>7.2f}"
            f"{row['peak_bytes'] / MB:>9.0f}{row['lora_bytes'] / MB:>9.0f}"
        )
    Path("bench.json").write_text(json.dumps(rows, indent=2) + "\n")


def bench_add(directory: Path, name: str, size: int) -> Iterator[dict[str, Any]]:
    """`add` of a new checkpoint, and `add` again, each against the floor; start-up is included in all of them.

    The registry exists already, as it does for all but the first `add` of its life. The data is made by a process of
    its own: the kernel's account of a child's peak memory starts with its parent's.
    """
    run = directory / name
    run_once(Command((sys.executable, "-m", "tests.bench.data", str(run), str(size))))
    checkpoint = run / "ckpt" / "iter-1"
    empty, home, kept = directory / "empty", directory / "home", directory / "kept"
    adapter, target = directory / "adapter.safetensors", directory / "floor.out"

    def clear() -> None:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(empty, home)
        target.unlink(missing_ok=True)

    add = (*REGISTRY, "add", str(checkpoint), "--home")
    tensor_file = str(checkpoint / "trainer.pt")
    run_once(Command((*REGISTRY, "db", "upgrade", "--home", str(empty))))
    run_once(Command((*add, str(kept))))
    shutil.copy(next(kept.glob("adapters/*/*/adapter_model.safetensors")), adapter)
    figures = alternate(
        {
            "add": Command((*add, str(home)), clear),
            "floor": Command((sys.executable, floor.__file__, tensor_file, str(adapter), str(target)), clear),
            "again": Command((*add, str(kept))),
            "hashing": Command((sys.executable, floor.__file__, tensor_file, str(adapter))),
        },
        RUNS,
    )
    lora = adapter.stat().st_size
    for what, mine, base in (("add", "add", "floor"), ("add again", "again", "hashing")):
        yield {
            "what": f"{what}, checkpoint of {name}",
            "seconds": figures[mine].seconds,
            "floor_seconds": figures[base].seconds,
            "ratio": figures[mine].seconds / figures[base].seconds,
            "peak_bytes": figures[mine].peak_bytes,
            "lora_bytes": lora,
        }
    for path in (kept, home, empty, run):
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
