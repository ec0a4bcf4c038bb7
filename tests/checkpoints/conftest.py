"""Files to read: saved by torch, or built byte by byte where torch would not write them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Save an object with torch.save."""

    def save(value: object, name: str = "trainer.pt", **options: object) -> Path:
        path = tmp_path / name
        torch.save(value, path, **options)
        return path

    return save


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    """Write records into a zip archive, stored, under the folder `archive`."""

    def pack(records: Mapping[str, bytes], name: str = "packed.pt") -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for record, data in records.items():
                archive.writestr(zipfile.ZipInfo(f"archive/{record}"), data)
        return path

    return pack


@pytest.fixture
def unpack() -> Callable[[Path], dict[str, bytes]]:
    """The records of a zip archive, without their folder."""

    def unpack(path: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(path) as archive:
            return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}

    return unpack
