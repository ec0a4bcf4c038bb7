"""Canonical JSON: the same value gives the same bytes on every machine, hash seed and Python version."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from registry.core.errors import MalformedFile, shown

MAX_DEPTH = 64
"""Levels of objects and lists within one another in what is read; what is written here has at most ten."""


def pretty(value: Any) -> bytes:
    """Sorted keys, two spaces, one final newline: for files that people read."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def pretty_in_order(value: Any) -> bytes:
    """Like `pretty`, for an object whose key order carries meaning."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def compact(value: Any) -> bytes:
    """Sorted keys, no spaces: for values inside other formats, and for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def compact_in_order(value: Any) -> bytes:
    """Like `compact`, for an object whose key order carries meaning."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sayable(path: str) -> str:
    """A path as text that JSON and UTF-8 can hold: what is not UTF-8 in it, as a path need not be, is escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def parse(data: bytes, path: str) -> Any:
    """Read JSON strictly: UTF-8, no duplicate keys, no NaN, no half of a surrogate pair, no more than MAX_DEPTH levels.

    Raises:
        MalformedFile: for anything else; `path` names the file in the message.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # an escape can spell what UTF-8 cannot
    except UnicodeError as error:
        raise MalformedFile("not UTF-8 text", path=path) from error
    except RecursionError as error:
        raise MalformedFile("JSON nested too deeply", path=path) from error
    except ValueError as error:
        raise MalformedFile(f"not valid JSON ({error})", path=path) from error
    if _is_deeper(value, MAX_DEPTH):
        raise MalformedFile("JSON nested too deeply", path=path, expected=f"at most {MAX_DEPTH} levels")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether containers are nested in more levels than that. What is not can be written and compared by recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner = (holder.values() if isinstance(holder, dict) else holder for holder in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
    return bool(level)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {shown(twice)} appears twice in one object")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
