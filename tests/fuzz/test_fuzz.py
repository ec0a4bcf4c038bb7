"""The fuzzer itself: it finds what is planted, it can repeat itself, and on what there is it finds nothing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutate import KINDS, MAX_LENGTH, mutated, zipped
from tests.fuzz.targets import CORPUS

PLANTED = """
import ctypes, json, os, sys, tempfile
from pathlib import Path
from registry.core.errors import MalformedFile
from tests.fuzz import hunt
from tests.fuzz.targets import Target

def run(data, directory):
    assert not list(directory.iterdir())
    (directory / "left").write_bytes(data)
    exec(code if data == b"bad" else "")

hunt.CPU_SECONDS = 1
target = Target("planted", "text", (b"good", b"bad", b"good", b"fine"), run)
for name, code in json.loads(sys.argv[1]).items():
    with tempfile.TemporaryDirectory() as scratch:
        found = hunt.hunt(target, hunt.kept(target), range(4), Path(scratch))
        hunt.save(found.findings, Path(sys.argv[2]) / name)
    print(json.dumps([found.inputs, found.accepted, len(found.findings)]))
"""
PLANTS = {
    "error": ("raise KeyError('x')", "KeyError: 'x'"),
    "exit": ("raise SystemExit", "SystemExit"),
    "endless": ("while True: pass", "the process died: -27"),
    "segfault": ("ctypes.string_at(1)", "the process died: -11"),
    "gone": ("os._exit(3)", "the process died: 3"),
    "greedy": ("bytearray(200 << 20)[::4096] = b'x' * (200 << 8)", "3 bytes took"),
    "too-greedy": ("bytearray(8 << 30)", "MemoryError"),
}
HARMLESS = {"ours": "raise MalformedFile('no')", "read": "pass"}


@dataclass(frozen=True)
class Planted:
    """What came of each thing that was planted: inputs, how many were accepted, findings; what was said and kept."""

    counts: dict[str, list[int]]
    said: list[str]
    kept: Path


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    kept = tmp_path_factory.mktemp("planted")
    codes = {name: code for name, (code, _) in PLANTS.items()} | HARMLESS
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, json.dumps(codes), kept], capture_output=True, text=True, check=True
    )
    counts = dict(zip(codes, map(json.loads, done.stdout.splitlines()), strict=True))
    return Planted(counts, done.stderr.splitlines(), kept)


@pytest.mark.parametrize("name", PLANTS)
def test_what_breaks_the_property_is_found_and_kept_and_the_rest_goes_on(name: str, planted: Planted) -> None:
    inputs, accepted, findings = planted.counts[name]
    assert (inputs, findings) == (4, 1)
    assert accepted >= 2
    says = PLANTS[name][1]
    assert says in (planted.kept / name / "planted" / "seed-1.why").read_text()
    assert (planted.kept / name / "planted" / "seed-1").read_bytes() == b"bad"
    assert any(line.startswith("FOUND planted seed-1: ") and says in line for line in planted.said)


def test_an_error_of_ours_and_an_input_that_is_read_are_no_findings(planted: Planted) -> None:
    assert (planted.counts["ours"], planted.counts["read"]) == ([4, 3, 0], [4, 4, 0])
    assert sorted(path.name for path in planted.kept.iterdir()) == sorted(PLANTS)


def sound_zip() -> bytes:
    return zipped([("archive/data.pkl", b"\x80\x02}q\x00."), ("archive/data/0", b"1234")])


POOLS: dict[str, list[bytes]] = {
    "json": [b'{"a": [1, {"b": "c"}], "d": null}'],
    "safetensors": [b"\x02\0\0\0\0\0\0\0{}", len(b'{"a":{"x":[1]}}').to_bytes(8, "little") + b'{"a":{"x":[1]}}'],
    "zip": [sound_zip()],
    "pickle": [b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00bK\x02u."],
    "text": [b"run@3"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_many_short_and_the_same_for_the_same_seed(kind: str) -> None:
    made = [mutated(Random(number), kind, POOLS[kind]) for number in range(300)]
    assert made == [mutated(Random(number), kind, POOLS[kind]) for number in range(300)]
    assert len(set(made)) > 100
    assert max(map(len, made)) <= MAX_LENGTH


def test_a_zip_file_made_here_is_one() -> None:
    for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(io.BytesIO(zipped([("a/b", b"x" * 1000), ("a/c", b"")], how))) as archive:
            assert archive.testzip() is None
            assert archive.read("a/b") == b"x" * 1000


def test_some_damaged_json_is_json_again() -> None:
    """Or nothing would ever get past the parser."""
    good = 0
    for number in range(300):
        try:
            json.loads(KINDS["json"][0](Random(number), POOLS["json"][0], ()))
            good += 1
        except (ValueError, RecursionError):
            pass
    assert 150 < good < 300


def test_no_reader_lets_anything_out_but_our_errors(tmp_path: Path) -> None:
    """A few thousand inputs, always the same. `python -m tests.fuzz --minutes 60 --seed 7` tries others."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--count", "180", "--seed", "5", "--findings", tmp_path / "findings"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    totals = {line.split()[0]: list(map(int, line.split()[1::2])) for line in done.stdout.splitlines()}
    assert len(totals) >= 22
    for name, (inputs, accepted, findings) in totals.items():
        assert inputs >= 5, name
        assert accepted > 0, f"{name}: not even the sound ones"
        assert findings == 0, name
    assert {path.name for path in CORPUS.iterdir()} <= totals.keys(), "every kept input has a target"
