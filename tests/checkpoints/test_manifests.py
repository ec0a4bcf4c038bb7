"""The manifest beside a checkpoint: every spelling is understood, and bytes that it does not vouch for are refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from registry.checkpoints import read_checkpoint
from registry.core.errors import MalformedFile, ManifestMismatch, NotFound, Refused
from registry.core.model import Checkpoint, ManifestEntry
from tests.support.runs import write_checkpoint

WRONG = hashlib.sha256(b"another file").hexdigest()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "run", manifest=False)


def sha256_of(directory: Path) -> str:
    return hashlib.sha256((directory / "trainer.pt").read_bytes()).hexdigest()


def read_beside(directory: Path, name: str, manifest: Any) -> Checkpoint:
    """Read the checkpoint with this manifest beside it; HEX in it stands for the right hash."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    (directory / name).write_text(text.replace("HEX", sha256_of(directory)))
    return read_checkpoint(str(directory))


SPELLINGS = [
    ("manifest.json", {"files": {"trainer.pt": {"sha256": "HEX", "bytes": 1}, "other": {"sha256": WRONG}}}),
    ("manifest.json", {"files": {"trainer.pt": "HEX"}, "iteration": 3}),
    ("manifest.json", {"files": {"./trainer.pt": "sha256:HEX"}}),
    ("manifest.json", {"files": [{"path": "other", "sha256": WRONG}, {"path": "trainer.pt", "sha256": "HEX"}]}),
    ("manifest.json", {"trainer.pt": "HEX", "iteration": 3}),
    ("manifest.json", [{"path": "trainer.pt", "sha256": "HEX"}]),
    ("checkpoint-manifest.json", {"files": {"trainer.pt": {"sha256": "HEX"}}}),
    ("SHA256SUMS", f"{WRONG}  other\nHEX  trainer.pt\n"),
    ("SHA256SUMS", f"HEX *trainer.pt\n\n{WRONG} *with space.bin"),
    ("SHA256SUMS", "HEX  ./trainer.pt\r\n"),
]


@pytest.mark.parametrize(("name", "manifest"), SPELLINGS)
def test_every_spelling_vouches_for_the_right_bytes(directory: Path, name: str, manifest: Any) -> None:
    checkpoint = read_beside(directory, name, manifest)
    assert checkpoint.manifest is not None
    assert (checkpoint.manifest.name, checkpoint.manifest.expected) == (name, checkpoint.digest)
    assert checkpoint.manifest.digest.hex == hashlib.sha256((directory / name).read_bytes()).hexdigest()
    assert checkpoint.warnings == ()


@pytest.mark.parametrize(("name", "manifest"), SPELLINGS)
def test_every_spelling_refuses_other_bytes_with_both_hashes(directory: Path, name: str, manifest: Any) -> None:
    """ktransformers#2147: a manifest newer, or older, than the file."""
    text = (manifest if isinstance(manifest, str) else json.dumps(manifest)).replace("HEX", "BAD").replace(WRONG, "HEX")
    with pytest.raises(ManifestMismatch) as caught:
        read_beside(directory, name, text.replace("BAD", WRONG))
    assert caught.value.path == str(directory / "trainer.pt")
    for part in (sha256_of(directory), WRONG, name):
        assert part in str(caught.value)


def test_upper_case_hex_is_the_same_hash(directory: Path) -> None:
    checkpoint = read_beside(directory, "SHA256SUMS", f"{sha256_of(directory).upper()}  trainer.pt")
    assert isinstance(checkpoint.manifest, ManifestEntry)


def test_no_manifest_is_said_aloud(directory: Path) -> None:
    checkpoint = read_checkpoint(str(directory))
    assert checkpoint.manifest is None
    assert checkpoint.warnings == ("no manifest beside the checkpoint: nothing says which bytes the trainer wrote",)


@pytest.mark.parametrize(
    ("name", "manifest"),
    [
        ("manifest.json", {"files": {}}),
        ("manifest.json", {"files": {"iter-3/trainer.pt": "HEX", "trainer.pt.bak": "HEX"}}),
        ("manifest.json", {}),
        ("SHA256SUMS", ""),
        ("SHA256SUMS", "HEX  Trainer.pt"),
    ],
)
def test_a_manifest_that_does_not_list_the_file_is_refused(directory: Path, name: str, manifest: Any) -> None:
    with pytest.raises(Refused, match=f"{name}: trainer.pt: the manifest does not list the file"):
        read_beside(directory, name, manifest)


def test_of_several_manifests_each_must_agree(directory: Path) -> None:
    read_beside(directory, "SHA256SUMS", "HEX  trainer.pt")
    assert read_beside(directory, "manifest.json", {"trainer.pt": "HEX"}).manifest is not None
    with pytest.raises(Refused, match="two manifests disagree") as caught:
        read_beside(directory, "SHA256SUMS", f"{WRONG}  trainer.pt")
    for part in (sha256_of(directory), WRONG, "manifest.json", "SHA256SUMS"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "manifest", "cause"),
    [
        ("manifest.json", "{", "not valid JSON"),
        ("manifest.json", '{"files": {"trainer.pt": "HEX", "trainer.pt": "HEX"}}', "appears twice"),
        ("manifest.json", {"files": {"trainer.pt": "HEX", "./trainer.pt": "HEX"}}, "lists a file twice"),
        ("manifest.json", [{"path": "trainer.pt", "sha256": "HEX"}] * 2, "lists a file twice"),
        ("manifest.json", {"files": {"trainer.pt": {"md5": "0"}}}, "trainer.pt: gives no sha256"),
        ("manifest.json", {"files": {"trainer.pt": 5}}, "trainer.pt: gives no sha256; found 5"),
        ("manifest.json", {"files": {"trainer.pt": "HEX0"}}, "trainer.pt: gives no sha256"),
        ("manifest.json", {"files": {"trainer.pt": "md5:HEX"}}, "trainer.pt: gives no sha256"),
        ("manifest.json", {"files": "trainer.pt"}, "lists no files"),
        ("manifest.json", "null", "lists no files"),
        ("manifest.json", [["trainer.pt", "HEX"]], "lists no files"),
        ("manifest.json", [{"path": 1, "sha256": "HEX"}], "a file's name is not text"),
        ("SHA256SUMS", "HEX trainer.pt", "not a line of a SHA256SUMS file"),
        ("SHA256SUMS", "trainer.pt: HEX", "not a line of a SHA256SUMS file"),
        ("SHA256SUMS", "HEX  trainer.pt\nHEX  trainer.pt", "lists a file twice"),
    ],
)
def test_a_malformed_manifest_is_refused_with_its_name_and_the_cause(
    directory: Path, name: str, manifest: Any, cause: str
) -> None:
    with pytest.raises(MalformedFile, match=rf"/{name}: .*{cause}"):
        read_beside(directory, name, manifest)


def test_the_manifest_holds_for_the_file_under_whatever_name_it_was_given(directory: Path) -> None:
    (directory / "trainer.pt").rename(directory / "policy.pt")
    (directory / "manifest.json").write_text(json.dumps({"policy.pt": WRONG}))
    with pytest.raises(ManifestMismatch):
        read_checkpoint(str(directory / "policy.pt"))


def test_a_manifest_that_points_nowhere_is_not_taken_for_none(directory: Path) -> None:
    (directory / "manifest.json").symlink_to("gone.json")
    with pytest.raises(NotFound, match=r"manifest\.json"):
        read_checkpoint(str(directory / "trainer.pt"))
