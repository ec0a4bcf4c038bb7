"""`make bench`: prints a table, and writes the same figures to bench.json."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import scale
from tests.bench.measure import Command, Figures, alternate, run_once
from tests.bench.scale import ADAPTERS, bench_scale

HERE = Path(__file__).parent
RUNS = 5
MODEL_RUNS = 3
SIZES = {"160 MB": 160_000_000, "1.3 GB": 1_300_000_000}
REGISTRY = (sys.executable, "-m", "registry.cli")
MB = 1_000_000


def main() -> None:
    """Measure everything and report."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="aorlta-bench-", dir=Path.cwd()) as directory:
        for name, size in SIZES.items():
            rows += list(bench_add(Path(directory), name, size))
        rows += list(bench_models(Path(directory)))
        large = list(bench_scale(Path(directory), ADAPTERS))
    print(HEADER)
    for each in rows:
        print(line(each))
    print(scale.HEADER)
    for each in large:
        print(scale.line(each))
    rows += large
    Path("bench.json").write_text(json.dumps(rows, indent=2) + "\n")


HEADER = f"{'what':<26}{'wall s':>8}{'peak MB':>9}   {'against':<34}{'wall s':>8}{'peak MB':>9}{'time':>7}{'memory':>8}"


def line(row: dict[str, Any]) -> str:
    """A row as text; the last two columns are the ratios."""
    peak, other_peak = row["peak_bytes"], row["against_peak_bytes"]
    mine = f"{row['what']:<26}{row['seconds']:>8.2f}{peak / MB:>9.0f}"
    other = f"{row['against']:<34}{row['against_seconds']:>8.2f}{other_peak / MB:>9.0f}"
    return f"{mine}   {other}{row['ratio']:>7.2f}{peak / other_peak:>8.2f}"


def row(what: str, mine: Figures, against: str, other: Figures, **more: Any) -> dict[str, Any]:
    """One line of the table."""
    return {
        "what": what,
        "seconds": mine.seconds,
        "peak_bytes": mine.peak_bytes,
        "against": against,
        "against_seconds": other.seconds,
        "against_peak_bytes": other.peak_bytes,
        "ratio": mine.seconds / other.seconds,
        **more,
    }


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
            "floor": Command((sys.executable, str(HERE / "floor.py"), tensor_file, str(adapter), str(target)), clear),
            "again": Command((*add, str(kept))),
            "hashing": Command((sys.executable, str(HERE / "floor.py"), tensor_file, str(adapter))),
        },
        RUNS,
    )
    lora = adapter.stat().st_size
    yield row(f"add, {name}", figures["add"], "floor: hash, hash, write, fsync", figures["floor"], lora_bytes=lora)
    yield row(f"add again, {name}", figures["again"], "floor: hash, hash", figures["hashing"], lora_bytes=lora)
    for path in (kept, home, empty, run):
        shutil.rmtree(path, ignore_errors=True)


def bench_models(directory: Path) -> Iterator[dict[str, Any]]:
    """`compare` and `merge` of a base of 2 GiB, against peft on the same files and against reading them once."""
    data, home, merged, saved = (directory / name for name in ("data", "models-home", "merged", "saved"))
    base, checkpoint, adapter, served = data / "base", data / "run/ckpt/iter-1", data / "adapter", data / "served"
    run_once(Command((sys.executable, "-m", "tests.bench.model_data", str(data))))
    run_once(Command((*REGISTRY, "add", str(checkpoint), "--home", str(home))))
    digest = next(home.glob("adapters/*/*")).name
    run_once(Command((*REGISTRY, "get", digest, "--to", str(adapter), "--home", str(home))))
    merge = (*REGISTRY, "merge", digest, "--base", str(base), "--home", str(home), "--to")
    run_once(Command((*merge, str(served))))
    peer = (sys.executable, str(HERE / "peft_peer.py"), str(base), str(adapter))

    def clear() -> None:
        shutil.rmtree(merged, ignore_errors=True)
        shutil.rmtree(saved, ignore_errors=True)

    compare = (*REGISTRY, "compare", digest, "--base", str(base), "--served", str(served), "--home", str(home))
    figures = alternate(
        {
            "compare": Command(compare),
            "peft compare": Command((*peer, str(served))),
            "reading": Command((sys.executable, str(HERE / "read_floor.py"), str(base), str(served))),
            "merge": Command((*merge, str(merged)), clear),
            "peft merge": Command((*peer, "--save", str(saved)), clear),
        },
        MODEL_RUNS,
    )
    size = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    speed = {"base_bytes": size, "base_bytes_per_second": size / figures["compare"].seconds}
    yield row(
        "compare, base of 2 GiB", figures["compare"], "peft merge + torch.equal", figures["peft compare"], **speed
    )
    yield row(
        "compare, base of 2 GiB", figures["compare"], "floor: base and served, read once", figures["reading"], **speed
    )
    yield row("merge, base of 2 GiB", figures["merge"], "peft merge + save", figures["peft merge"], base_bytes=size)


if __name__ == "__main__":
    main()
