"""What a record says, as the values of rows: every field is checked here, so that no record can stop an insertion.

Fields that later versions add are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from registry.core.comparison import Verdict
from registry.core.digest import Digest
from registry.core.errors import InvalidReference, MalformedFile, Refused, shown
from registry.core.layout import WEIGHTS
from registry.core.model import number
from registry.core.records import Record
from registry.core.refs import alias_name
from registry.core.summary import Status
from registry.core.times import is_time

Row = dict[str, Any]
_BEYOND_INT64 = 2**63
_Value = TypeVar("_Value")


def export(record: Record) -> Row:
    """One export, with what its adapter and its checkpoint are.

    Raises:
        MalformedFile: a field is missing or is not what it should be. So do the functions below.
    """
    says = _Says(record)
    return {
        "record": record.digest.hex,
        "digest": record.subject.hex,
        "tensor_digest": says.digest("adapter", "tensor_digest"),
        "bytes": says.integer("adapter", WEIGHTS, "bytes"),
        "modules": says.integer("adapter", "modules"),
        "r": says.integer("lora", "r"),
        "lora_alpha": says.the(_alpha, "lora", "lora_alpha"),
        "use_rslora": bool(says.optional(_boolean, "lora", "use_rslora")),
        "checkpoint": says.digest("checkpoint", "sha256"),
        "checkpoint_bytes": says.integer("checkpoint", "bytes"),
        "path": says.text("checkpoint", "path"),
        "reader": says.text("checkpoint", "reader"),
        "run": says.optional(_text, "run", "id"),
        "iteration": says.optional(_integer, "run", "iteration"),
        "base_name": says.optional(_text, "base", "name"),
        "base_revision": says.optional(_text, "base", "revision"),
        "exported_at": says.the(_time, "exported_at"),
        "warm_start": says.optional(_hex, "run", "warm_start"),
        "resumed_from": says.optional(_hex, "run", "resumed_from"),
    }


def comparison(record: Record) -> list[Row]:
    """One comparison, a row for each engine."""
    says = _Says(record)
    shared = {
        "record": record.digest.hex,
        "digest": record.subject.hex,
        "recipe": says.text("recipe"),
        "device": says.text("conditions", "device"),
        "threads": says.integer("conditions", "threads"),
        "torch": says.text("conditions", "torch"),
        "base_digest": says.digest("base_digest"),
        "compared_at": says.text("compared_at"),
    }
    return [
        shared
        | {
            "engine": engine.text("engine"),
            "verdict": engine.the(_verdict, "verdict"),
            "rounding": engine.optional(_text, "stated", "rounding"),
            "served_digest": engine.digest("served_digest"),
            "surviving": engine.optional(_number, "survival", "projected"),
            "rounded_away": engine.optional(_number, "survival", "rounded_away"),
        }
        for engine in says.each("engines")
    ]


def alias_move(record: Record) -> Row:
    """One move of an alias."""
    says = _Says(record)
    name = says.the(_name, "alias")
    return {
        "record": record.digest.hex,
        "folded": name.lower(),
        "name": name,
        "sequence": says.integer("sequence"),
        "before": says.optional(_hex, "from"),
        "after": says.optional(_hex, "to"),
        "moved_at": says.text("moved_at"),
        "moved_by": says.text("moved_by"),
    }


def score_run(record: Record) -> Row:
    """One score run; `scores` are metric to value."""
    says = _Says(record)
    return {
        "record": record.digest.hex,
        "digest": record.subject.hex,
        "name": says.optional(_text, "score_run", "name"),
        "status": says.the(_status, "status"),
        "reason": says.optional(_text, "stop", "reason"),
        "result_digest": says.digest("score_run", "result", "sha256"),
        "config_digest": says.optional(_hex, "score_run", "config", "sha256"),
        "path": says.text("score_run", "path"),
        "scored_at": says.text("scored_at"),
        "scored_by": says.text("scored_by"),
        "scores": says.the(_scores, "scores"),
    }


def removal(record: Record) -> Row:
    """One removal of an adapter from the store."""
    says = _Says(record)
    return {
        "record": record.digest.hex,
        "digest": record.subject.hex,
        "removed_at": says.the(_time, "removed_at"),
        "removed_by": says.text("removed_by"),
        "reason": says.optional(_text, "reason"),
    }


class _Says:
    """A record's predicate, or a part of it, read field by field."""

    def __init__(self, record: Record, facts: Any = None, place: str = "") -> None:
        self._record = record
        self._facts = record.predicate if facts is None else facts
        self._place = place

    def the(self, read: Callable[[Any], _Value], *keys: str) -> _Value:
        """The field at `keys`, as `read` makes it of its JSON value."""
        value = self._facts
        try:
            for key in keys:
                value = value[key]
            return read(value)
        except (LookupError, TypeError, ValueError, InvalidReference, Refused) as error:
            raise MalformedFile(
                "a field of the record is missing, or is not what it should be",
                path=self._record.path or self._record.name,
                key=self._place + ".".join(keys),
                found=shown(value),
            ) from error

    def optional(self, read: Callable[[Any], _Value], *keys: str) -> _Value | None:
        """The same, or None where the field or what should hold it is missing or null."""
        value = self._facts
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            if value is None:
                return None
        return self.the(read, *keys)

    def each(self, key: str) -> list[_Says]:
        """The items of the list at `key`."""
        return [_Says(self._record, item, f"{key}.{n}.") for n, item in enumerate(self.the(_items, key))]

    def text(self, *keys: str) -> str:
        return self.the(_text, *keys)

    def integer(self, *keys: str) -> int:
        return self.the(_integer, *keys)

    def digest(self, *keys: str) -> str:
        return self.the(_hex, *keys)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _time(value: Any) -> str:
    if not is_time(value):
        raise ValueError
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _BEYOND_INT64:
        raise TypeError
    return value


def _number(value: Any) -> int | float:
    found = number(value)
    if found is None:
        raise TypeError
    return found


def _alpha(value: Any) -> int | float:
    found = _number(value)
    if found == 0:
        raise ValueError
    return found


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _hex(value: Any) -> str:
    return Digest(_text(value)).hex


def _verdict(value: Any) -> str:
    return Verdict(value).value


def _status(value: Any) -> str:
    return Status(value).value


def _scores(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise TypeError
    return {name: float(_number(each)) for name, each in value.items()}


def _name(value: Any) -> str:
    return alias_name(_text(value)).name
