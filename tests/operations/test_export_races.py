"""A checkpoint that changes and an output that appears while an export runs. What happens in between is done by the
progress callback, which every caller may give: it runs while the tensor file is being read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from registry import Refused, export_checkpoint
from registry.core.errors import ChangedWhileRead, ManifestMismatch, OutputExists
from registry.core.layout import ADAPTER_FILES, MANIFEST, WEIGHTS
from tests.support.process import COMMAND
from tests.support.runs import MODULES, contents, lora_state, write_checkpoint, write_manifest
from tests.support.strace import needs_strace
from tests.support.trees import contents as files_in
from tests.support.trees import flip

KEY = f"base_model.model.{MODULES[0]}.lora_A.weight"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkpoint's tensor file."""
    return write_checkpoint(tmp_path_factory.mktemp("other") / "run", contents(lora_state(seed=1))) / "trainer.pt"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def replace(checkpoint: Path, other: Path) -> None:
    """Put another tensor file in place, as a trainer does: by rename."""
    shutil.copy(other, checkpoint / "new")
    os.rename(checkpoint / "new", checkpoint / "trainer.pt")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def export(checkpoint: Path, out: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Export; `meanwhile` happens once, when the first bytes of the tensor file have been read."""
    pending = [meanwhile]

    def progress(_count: int, _total: int) -> None:
        if pending:
            pending.pop()()

    export_checkpoint(checkpoint, out, progress=progress)
    assert not pending


def assert_nothing_published(out: Path) -> None:
    assert not out.exists()
    assert not out.with_name("out.partial").exists(), "nothing had been written yet"


def test_file_replaced_before_is_refused_with_both_hashes(checkpoint: Path, other: Path, out: Path) -> None:
    listed = sha256(checkpoint / "trainer.pt")
    replace(checkpoint, other)
    with pytest.raises(ManifestMismatch) as caught:
        export(checkpoint, out)
    assert listed in str(caught.value)
    assert sha256(other) in str(caught.value)
    assert caught.value.path == str(checkpoint / "trainer.pt")
    assert_nothing_published(out)


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 5, 6, 7])
def test_one_wrong_bit_anywhere_in_the_file_is_refused(place: int, checkpoint: Path, out: Path) -> None:
    file = checkpoint / "trainer.pt"
    data = bytearray(file.read_bytes())
    data[place * (len(data) - 1) // 7] ^= 0x10
    file.write_bytes(data)
    with pytest.raises(Refused):
        export(checkpoint, out)
    assert_nothing_published(out)


def test_file_replaced_before_together_with_its_manifest_is_the_new_checkpoint(
    checkpoint: Path, other: Path, out: Path
) -> None:
    replace(checkpoint, other)
    write_manifest(checkpoint)
    export(checkpoint, out)
    assert json.loads((out / MANIFEST).read_text())["checkpoint"]["sha256"] == sha256(other)
    assert torch.equal(load_file(out / WEIGHTS)[KEY], lora_state(seed=1)[f"{MODULES[0]}.lora_A.weight"])


@pytest.mark.parametrize("with_manifest", [False, True])
def test_file_replaced_while_it_is_read_does_not_mix_into_the_export(
    with_manifest: bool, checkpoint: Path, other: Path, out: Path
) -> None:
    before = sha256(checkpoint / "trainer.pt")

    def meanwhile() -> None:
        replace(checkpoint, other)
        if with_manifest:
            write_manifest(checkpoint)

    export(checkpoint, out, meanwhile)
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["checkpoint"]["sha256"] == before != sha256(checkpoint / "trainer.pt")
    assert torch.equal(load_file(out / WEIGHTS)[KEY], lora_state()[f"{MODULES[0]}.lora_A.weight"])
    assert manifest["adapter"][WEIGHTS]["sha256"] == sha256(out / WEIGHTS)


def overwrite(file: Path, other: Path) -> None:
    file.write_bytes(other.read_bytes())


def overwrite_keeping_times(file: Path, _other: Path) -> None:
    before = file.stat()
    flip(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(file: Path, _other: Path) -> None:
    os.truncate(file, 1000)


def lengthen(file: Path, _other: Path) -> None:
    with file.open("ab") as end:
        end.write(b"more")


@pytest.mark.parametrize(
    ("change", "manifest"),
    [
        (overwrite, True),
        (overwrite, False),
        (cut, True),
        (cut, False),
        (lengthen, False),
        (overwrite_keeping_times, True),
    ],
)
def test_file_changed_in_place_while_it_is_read_is_refused(
    change: Callable[[Path, Path], None], manifest: bool, tmp_path: Path, other: Path, out: Path
) -> None:
    saved = contents(lora_state()) | {"rest": torch.zeros(1 << 18)}
    checkpoint = write_checkpoint(tmp_path / "long", saved, manifest=manifest)
    file = checkpoint / "trainer.pt"
    with pytest.raises((ChangedWhileRead, ManifestMismatch)) as caught:
        export(checkpoint, out, lambda: change(file, other))
    assert caught.value.path == str(file)
    assert_nothing_published(out)


@needs_strace
def test_file_and_manifest_replaced_between_their_openings_are_not_taken_for_a_pair(
    checkpoint: Path, other: Path, out: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    watched = ["-P", str(checkpoint / "manifest.json"), "-P", str(checkpoint / "trainer.pt"), "-e", "trace=openat"]
    second_waits = ["-e", "inject=openat:delay_enter=2s:when=2"]
    command = ["strace", "-f", "-qq", "-o", str(log), *watched, *second_waits]
    command += [*COMMAND, "export", str(checkpoint), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (log.exists() and "trainer.pt" in log.read_text()):  # it waits; the manifest is open
            assert time.monotonic() < deadline
            time.sleep(0.01)
        replace(checkpoint, other)
        write_manifest(checkpoint)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert sha256(other) in stderr
    assert_nothing_published(out)


def test_output_that_exists_is_refused_before_the_checkpoint_is_read(checkpoint: Path, out: Path) -> None:
    out.mkdir()
    with pytest.raises(OutputExists):
        export(checkpoint, out, lambda: pytest.fail("the checkpoint was read"))
    assert list(out.iterdir()) == []


def put_file(out: Path) -> None:
    (out / "mine").write_text("mine")


def put_other_directory(out: Path) -> None:
    out.rename(out.with_name("moved"))
    out.mkdir()


def put_full_directory(out: Path) -> None:
    put_other_directory(out)
    put_file(out)


def put_link(out: Path) -> None:
    out.rename(out.with_name("moved"))
    out.symlink_to("moved")


@pytest.mark.parametrize("put", [put_file, put_other_directory, put_full_directory, put_link])
def test_output_that_appears_meanwhile_is_left_alone_and_the_export_kept_beside_it(
    put: Callable[[Path], None], checkpoint: Path, out: Path
) -> None:
    def meanwhile() -> None:
        put(out)
        there.append((os.lstat(out), files_in(out)))

    there: list[tuple[os.stat_result, dict[str, bytes]]] = []
    with pytest.raises(OutputExists) as caught:
        export(checkpoint, out, meanwhile)
    partial = out.with_name("out.partial")
    assert os.path.samestat(os.lstat(out), there[0][0])
    assert files_in(out) == there[0][1]
    assert set(files_in(partial)) == set(ADAPTER_FILES)
    assert str(partial) in str(caught.value)


def test_two_exports_to_one_name_give_one_directory_and_one_refusal(checkpoint: Path, out: Path) -> None:
    command = [*COMMAND, "export", str(checkpoint), "--out", str(out)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    for process in processes:
        process.communicate(timeout=120)
    assert sorted(process.returncode for process in processes) == [0, 2, 2, 2]
    assert set(files_in(out)) == set(ADAPTER_FILES)
    assert not out.with_name("out.partial").exists()
