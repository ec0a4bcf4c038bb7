"""The manifest beside a checkpoint: which sha256 its tensor file must have. Several spellings, one meaning."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, NamedTuple

from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, MalformedFile, ManifestMismatch, NotFound, Refused, shown
from registry.core.model import ManifestEntry
from registry.disk import read_small

NAMES = ("manifest.json", "checkpoint-manifest.json", "SHA256SUMS")
_SUMS_LINE = re.compile(r"(?P<hex>[0-9A-Fa-f]{64}) [ *](?P<name>.+)")


def has_manifest(directory: str) -> bool:
    """Whether there is one, of any spelling."""
    return any(os.path.lexists(os.path.join(directory, name)) for name in NAMES)


def find_entry(directory: str, file: str) -> ManifestEntry | None:
    """What the manifest in `directory` says of `file`; None where there is no manifest.

    Raises:
        MalformedFile: a manifest that cannot be read as one.
        Refused: a manifest that does not list the file, or two manifests that disagree.
    """
    manifests = [found for name in NAMES if (found := _read(os.path.join(directory, name))) is not None]
    for manifest in manifests:
        if file not in manifest.listed:
            raise Refused(
                "the manifest does not list the file", path=manifest.path, key=file, found=sorted(manifest.listed)[:10]
            )
    return _agreed(manifests, directory, file)


def find_listed(directory: str, file: str) -> ManifestEntry | None:
    """The same where a file need not be listed, and a manifest.json can be something else; then None.

    Raises:
        MalformedFile: a manifest that lists the file without a sha256.
        Refused: two manifests disagree.
    """
    manifests = []
    for name in NAMES:
        try:
            found = _read(os.path.join(directory, name))
        except MalformedFile:
            continue
        if found is not None and file in found.listed:
            manifests.append(found)
    return _agreed(manifests, directory, file)


def require_listed(manifest: ManifestEntry | None, path: str, digest: Digest) -> None:
    """Hold what was read against what the manifest says.

    Raises:
        ManifestMismatch: it lists another digest.
    """
    if manifest is not None and manifest.expected != digest:
        raise ManifestMismatch(
            f"differs from what {manifest.name} lists", path=path, found=digest, expected=manifest.expected
        )


class _Manifest(NamedTuple):
    path: str
    digest: Digest
    listed: dict[str, Any]


def _agreed(manifests: list[_Manifest], directory: str, file: str) -> ManifestEntry | None:
    entries = [
        ManifestEntry(os.path.basename(path), digest, _digest(listed[file], path, file))
        for path, digest, listed in manifests
    ]
    for entry in entries[1:]:
        if entry.expected != entries[0].expected:
            raise Refused(
                "two manifests disagree",
                path=os.path.join(directory, file),
                found=f"{entries[0].expected} in {entries[0].name}, {entry.expected} in {entry.name}",
            )
    return entries[0] if entries else None


def _read(path: str) -> _Manifest | None:
    try:
        data = read_small(path)
    except NotFound:
        if os.path.islink(path):
            raise  # it points nowhere: there is a manifest, and it cannot be read
        return None
    listed = _sums(data, path) if path.endswith("SHA256SUMS") else _json(jsontext.parse(data, path), path)
    return _Manifest(path, Digest(hashlib.sha256(data).hexdigest()), listed)


def _sums(data: bytes, path: str) -> dict[str, Any]:
    listed: dict[str, Any] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        if not line.strip():
            continue
        match = _SUMS_LINE.fullmatch(line)
        if match is None:
            raise MalformedFile("not a line of a SHA256SUMS file", path=path, found=repr(line[:80]))
        _list(listed, match["name"], match["hex"], path)
    return listed


def _json(document: Any, path: str) -> dict[str, Any]:
    listed: dict[str, Any] = {}
    for name, value in _items(document, path):
        _list(listed, name, value, path)
    return listed


def _items(document: Any, path: str) -> list[tuple[Any, Any]]:
    files = document.get("files", document) if isinstance(document, dict) else document
    if isinstance(files, dict):
        return list(files.items())
    if isinstance(files, list) and all(isinstance(item, dict) and "path" in item for item in files):
        return [(item["path"], item) for item in files]
    raise MalformedFile('lists no files: expected {"files": {"<name>": {"sha256": "<hex>"}}}', path=path)


def _list(listed: dict[str, Any], name: Any, value: Any, path: str) -> None:
    if not isinstance(name, str):
        raise MalformedFile("a file's name is not text", path=path, found=shown(name))
    plain = os.path.normpath(name)
    if plain in listed:
        raise MalformedFile("lists a file twice", path=path, key=plain)
    listed[plain] = value.get("sha256") if isinstance(value, dict) else value


def _digest(value: Any, path: str, file: str) -> Digest:
    if not isinstance(value, str):
        raise MalformedFile("gives no sha256", path=path, key=file, found=shown(value))
    try:
        return Digest.parse(value)
    except InvalidReference as error:
        raise MalformedFile("gives no sha256", path=path, key=file, found=shown(value)) from error
