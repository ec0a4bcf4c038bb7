"""The two files of a score run, run_result.json and config.json: each is read once, hashed as read, and checked.

What they say of the adapter is only collected here: which one that is, the registry has to tell.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from registry.core import jsontext
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, MalformedFile, NotFound, Refused, shown
from registry.core.model import number
from registry.core.summary import Status
from registry.disk import read_small, translated

RESULT = "run_result.json"
CONFIG = "config.json"
RESULT_ADAPTER = "result"
CONFIG_ADAPTER = "config"
ADAPTER_DIR = "adapter_dir"
_LONGEST_NAME = 256
_MOST_SCORES = 4096
_DEEPEST = 32
_MOST_OF_STOP = 100_000  # bytes: indented, as a record is, it may be a hundred times as long
_KINDS = {str: "text", bool: "a truth value", list: "a list", type(None): "null"}


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file as it was read: what it says, and the digest and length of those bytes."""

    path: str
    data: Mapping[str, Any]
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Named:
    """What a file says of the adapter that was used.

    Attributes:
        by: which kind of statement it is: `result`, `config` or `adapter_dir`.
        path, key: where it stands.
        text: a reference.
    """

    by: str
    path: str
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class ScoreFiles:
    """What the files of a score run say.

    Attributes:
        directory: where they are, absolute.
        result, config: the files; no config where there is none.
        name: what the score run is called, if anything.
        status: whether it completed. With a detail of why it stopped, it did not.
        stop: `reason` and `detail`, as they are stated; None for neither.
        scores: metric to value; what was nested is named `outer/inner`.
        left_out: what stands among the scores and is no number, a clause each.
        named: every statement about the adapter, the result's first.
    """

    directory: str
    result: FileRead
    config: FileRead | None
    name: str | None
    status: Status
    stop: Mapping[str, Any] | None
    scores: Mapping[str, int | float]
    left_out: tuple[str, ...]
    named: tuple[Named, ...]


def read_score_run(path: str) -> ScoreFiles:
    """Read a score run's directory, or the run_result.json in it.

    Raises:
        NotFound: there is no run_result.json.
        Refused: a file is too large, of another kind, or does not say what it must; MalformedFile among them.
        StorageError: a file cannot be read.
    """
    with translated(path):  # the current directory may be gone
        directory = os.path.abspath(path)
    if os.path.basename(directory) == RESULT and not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    elif os.path.lexists(directory) and not os.path.isdir(directory):
        raise Refused("neither the directory of a score run nor its run_result.json", path=directory)
    result = _read(os.path.join(directory, RESULT))
    config = _read_if_any(os.path.join(directory, CONFIG))
    stop = _stop(result)
    status = _status(result, stop)
    scores, left_out = _scores(result)
    if not scores and status is Status.COMPLETED:
        found = "; ".join(left_out) or "none"
        raise Refused("a completed score run without any number", path=result.path, key="scores", found=shown(found))
    name = _name(result) or (None if config is None else _name(config))
    return ScoreFiles(directory, result, config, name, status, stop, scores, left_out, tuple(_named(result, config)))


def _read(path: str) -> FileRead:
    data = read_small(path)
    stated = jsontext.parse(data, path)
    if not isinstance(stated, dict):
        raise MalformedFile("not a JSON object", path=path, found=type(stated).__name__)
    return FileRead(path, stated, Digest(hashlib.sha256(data).hexdigest()), len(data))


def _read_if_any(path: str) -> FileRead | None:
    try:
        return _read(path)
    except NotFound:
        return None


def _name(file: FileRead) -> str | None:
    name = file.data.get("run_id")
    if not isinstance(name, str) or not name.strip():
        return None
    if len(name) > _LONGEST_NAME:
        raise _too_long(file, "run_id", name)
    return name


def _status(result: FileRead, stop: Mapping[str, Any] | None) -> Status:
    stated = result.data.get("status")
    if stated not in tuple(Status):
        raise Refused(
            "the score run has not ended, or does not say how",
            path=result.path,
            key="status",
            found=shown(stated),
            expected=" or ".join(Status),
        )
    return Status.STOPPED if stop is not None and stop["detail"] else Status(stated)


def _stop(result: FileRead) -> Mapping[str, Any] | None:
    """Why the run stopped, as far as it is said."""
    stated = result.data.get("stop")
    if stated is None:
        return None
    if not isinstance(stated, dict):
        raise MalformedFile("not a JSON object", path=result.path, key="stop", found=shown(stated))
    stop = {"reason": stated.get("reason"), "detail": stated.get("detail")}
    if stop["reason"] is not None and not isinstance(stop["reason"], str):
        raise MalformedFile("not text", path=result.path, key="stop.reason", found=shown(stop["reason"]))
    if _is_deep(stop["detail"]):
        raise Refused("nested too deeply to be kept", path=result.path, key="stop.detail")
    try:
        length = len(jsontext.compact(stop))
    except ValueError as error:  # 1e999 is read as infinity
        raise MalformedFile("holds a number that JSON does not", path=result.path, key="stop.detail") from error
    if length > _MOST_OF_STOP:
        limit = f"at most {_MOST_OF_STOP} bytes"
        raise Refused("too long to be kept", path=result.path, key="stop", found=f"{length} bytes", expected=limit)
    return stop if any(value is not None for value in stop.values()) else None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _scores(result: FileRead) -> tuple[dict[str, int | float], tuple[str, ...]]:
    stated = result.data.get("scores")
    if not isinstance(stated, dict):
        raise Refused(
            "states no scores", path=result.path, key="scores", found=shown(stated), expected="an object of numbers"
        )
    if _is_deep(stated):
        raise Refused("nested too deeply to be scores", path=result.path, key="scores")
    scores: dict[str, int | float] = {}
    left_out: dict[str, str] = {}
    for name, value in _leaves(stated, result):
        if len(name) > _LONGEST_NAME:
            raise _too_long(result, "scores", name)
        if name in scores or name in left_out:
            raise Refused("two scores have this name", path=result.path, key=f"scores.{name}")
        found = number(value)
        if found is None:
            left_out[name] = f"{name} is {_KINDS.get(type(value), 'no number that can be kept')}"
        else:
            scores[name] = found
    if len(scores) > _MOST_SCORES:
        limit = f"at most {_MOST_SCORES}"
        raise Refused("too many scores to be kept", path=result.path, key="scores", found=len(scores), expected=limit)
    return scores, tuple(left_out.values())


def _leaves(stated: Mapping[str, Any], result: FileRead, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in stated.items():
        if not name.strip():
            raise Refused("a score without a name", path=result.path, key="scores", found=shown(before + name))
        if isinstance(value, dict):
            yield from _leaves(value, result, f"{before}{name}/")
        else:
            yield before + name, value


def _named(result: FileRead, config: FileRead | None) -> Iterator[Named]:
    files = [(RESULT_ADAPTER, result), *([(CONFIG_ADAPTER, config)] if config is not None else [])]
    models = [(by, file.path, file.data.get("model")) for by, file in files]
    for by, path, model in models:
        if isinstance(model, dict) and (adapter := model.get("adapter")) is not None:
            if not isinstance(adapter, str):
                raise MalformedFile("not a reference", path=path, key="model.adapter", found=shown(adapter))
            yield Named(by, path, "model.adapter", adapter)
    for _, path, model in models:
        if isinstance(model, dict) and isinstance(where := model.get("adapter_dir"), str):
            digest = _of_directory(where)
            if digest is not None:
                yield Named(ADAPTER_DIR, path, "model.adapter_dir", str(digest))


def _of_directory(path: str) -> Digest | None:
    """The adapter whose directory inside a store this is, by its name."""
    try:
        return Digest(os.path.basename(os.path.normpath(path)))
    except InvalidReference:
        return None


def _too_long(file: FileRead, key: str, name: str) -> Refused:
    limit = f"at most {_LONGEST_NAME} characters"
    return Refused("a name that is too long", path=file.path, key=key, found=shown(name), expected=limit)
