"""A walk over a pickle's opcodes before CPython's unpickler sees them: refuses what could exhaust memory, the C stack
or time in there. Knows what opcodes do to the stack, and nothing of what the pickle means."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal, NamedTuple

from registry.core.errors import UnsafePickle

MAX_PROTOCOL = 5
MAX_OPCODES = 8_000_000
"""Most opcodes in one pickle; 100,000 tensors need 6,000,000. An opcode makes at most one object of some 200 bytes."""

MAX_KEY_WEIGHT = 1000
"""Most objects that hashing one dictionary key may visit."""

MAX_ODD_KEYS = 10_000
"""Most keys, in one pickle, that are neither text nor small numbers. How those are hashed is known beforehand, so that
thousands can be made to fall into one place of a dict or set, where each is held against all others."""

_SMALL = 1 << 20
_ODD = {"BININT", "LONG1", "BINFLOAT"}
_NEVER_WRITTEN = {
    **dict.fromkeys(
        ("PERSID", "INT", "LONG", "FLOAT", "STRING", "UNICODE"),
        "torch writes binary pickles, and this is its text form",
    ),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), "it names a global by a number that only the writer's process knew"),
    **dict.fromkeys(("NEXT_BUFFER", "READONLY_BUFFER"), "torch keeps no data outside the pickle this way"),
    "LONG4": "no checkpoint holds an integer of over 2000 bits, and each use as a key hashes it anew",
}
_Effect = Literal["mark", "put", "get", "duplicate", "in place", "make"]
_EFFECTS: dict[str, _Effect] = {
    "MARK": "mark",
    "DUP": "duplicate",
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), "put"),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), "get"),
    **dict.fromkeys(("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"), "in place"),
}
_KEYS = {
    "SETITEM": slice(1, None, 2),
    "SETITEMS": slice(1, None, 2),
    "DICT": slice(0, None, 2),
    "ADDITEMS": slice(1, None),
    "FROZENSET": slice(0, None),
}
_LENGTH_PREFIX = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,  # signed, but read as unsigned a negative length is too long as well
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


class _Opcode(NamedTuple):
    """What follows an opcode in the stream, and what the opcode does to the stack.

    Attributes:
        fixed: bytes of argument.
        prefix: bytes that hold the length of an argument of any size.
        lines: newline-ended lines of argument.
        takes: values taken off the stack, below those down to the last mark.
        to_mark: whether everything down to the last mark is taken too.
        gives: whether it leaves a value on the stack.
        keys: which of the values taken get hashed.
        is_odd: whether it gives a number that may be no small one.
    """

    name: str
    fixed: int
    prefix: int
    lines: int
    effect: _Effect
    takes: int
    to_mark: bool
    gives: bool
    keys: slice | None
    is_odd: bool


def _opcode(info: pickletools.OpcodeInfo) -> _Opcode:
    size = 0 if info.arg is None else info.arg.n
    before = info.stack_before
    to_mark = pickletools.markobject in before
    effect = _EFFECTS.get(info.name, "make")
    return _Opcode(
        name=info.name,
        fixed=max(size, 0),
        prefix=_LENGTH_PREFIX.get(size, 0),
        lines=0 if size != pickletools.UP_TO_NEWLINE else 2 if info.name in ("GLOBAL", "INST") else 1,
        effect=effect,
        takes=1 if effect == "put" else before.index(pickletools.markobject) if to_mark else len(before),
        to_mark=to_mark,
        gives=bool(info.stack_after),
        keys=_KEYS.get(info.name),
        is_odd=info.name in _ODD,
    )


_TABLE = {ord(info.code): _opcode(info) for info in pickletools.opcodes}


def scan(data: bytes, path: str | PathLike[str]) -> None:
    """Refuse a pickle that is not safe to hand to CPython's unpickler, or that torch.save does not write.

    The unpickler allocates what a length or memo index asks for before it looks whether the data is there, and it
    hashes keys without limit: tuples nested 100,000 deep overflow the C stack, and 60 tuples that each hold the one
    before twice take years. So lengths are held against the data, memo indices against the number of opcodes, and the
    stack is followed for one number per value, its weight: an upper bound of how many objects hashing it visits. What
    is hashed with a secret, text, and what cannot collide, small numbers, weigh 1; of heavier keys there are not many.

    Raises:
        UnsafePickle: names the opcode and its offset.
    """
    stack = _Stack()
    for number, (at, opcode, argument) in enumerate(_walk(data, path)):
        try:
            stack.apply(opcode, argument, number)
        except _RefusedError as error:
            raise _refusal(path, opcode.name, at, str(error)) from error


def _refusal(path: str | PathLike[str], name: str, at: int, why: str) -> UnsafePickle:
    return UnsafePickle(f"opcode {name} at byte {at} is refused: {why}", path=path, key="data.pkl")


def _walk(data: bytes, path: str | PathLike[str]) -> Iterator[tuple[int, _Opcode, bytes]]:
    """Each opcode's offset, the opcode and its raw argument, up to STOP, which must be the last byte."""
    if data[:1] != b"\x80" or data[1:2] > bytes([MAX_PROTOCOL]):
        raise UnsafePickle("not a pickle of a protocol that torch.save writes", path=path, key="data.pkl")
    at, frame_end, size = 0, 0, len(data)
    for _ in range(MAX_OPCODES):
        start = at
        opcode = _TABLE.get(data[at]) if at < size else None
        if opcode is None:
            raise _refusal(path, "?", at, "no such opcode, or the end of the pickle before STOP")
        name = opcode.name
        argument, at = _argument(data, start + 1, opcode)
        if start < frame_end and (at > frame_end or name == "FRAME"):
            # The unpickler would drop the rest of the frame, and go on with other opcodes than those seen here.
            raise _refusal(path, name, start, "it crosses the end of its frame")
        if name == "FRAME":
            frame_end = at + int.from_bytes(data[argument:at], "little")
        if max(at, frame_end) > size:
            raise _refusal(path, name, start, "it reaches beyond the end of the pickle")
        if name in _NEVER_WRITTEN:
            raise _refusal(path, name, start, _NEVER_WRITTEN[name])
        yield start, opcode, data[argument:at]
        if name == "STOP":
            break
    else:
        raise UnsafePickle("too many opcodes", path=path, key="data.pkl", expected=f"<= {MAX_OPCODES}")
    if at != size:
        raise _refusal(path, "STOP", at - 1, "bytes follow it")


def _argument(data: bytes, at: int, opcode: _Opcode) -> tuple[int, int]:
    """Where an opcode's argument starts and stops; it stops beyond `data` where that does not hold all of it."""
    length = opcode.fixed
    if opcode.prefix:
        length = int.from_bytes(data[at : at + opcode.prefix], "little")
        at += opcode.prefix
    stop = at + length
    for _ in range(opcode.lines):
        stop = data.find(b"\n", stop) + 1 or len(data) + 1
    return at, stop


class _RefusedError(Exception):
    """Why an opcode is refused."""


@dataclass(slots=True)
class _Stack:
    """The unpickler's stack and memo with a weight in the place of each value, and the stack's height at each mark."""

    weights: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, int] = field(default_factory=dict)
    odd_keys: int = 0

    def apply(self, opcode: _Opcode, argument: bytes, number: int) -> None:
        """Do what the opcode, the `number`-th of the pickle, does."""
        if opcode.effect == "mark":
            self.marks.append(len(self.weights))
        elif opcode.effect == "get":
            self.weights.append(self._stored(_memo_index(opcode, argument)))
        else:
            taken = self._take(opcode)
            if opcode.effect == "put":
                index = len(self.memo) if opcode.name == "MEMOIZE" else _memo_index(opcode, argument)
                self._store(index, taken[0], number)
            elif opcode.keys is not None:
                self._hash(taken[opcode.keys])
            self.weights += _given(opcode, taken, argument)

    def _hash(self, keys: list[int]) -> None:
        heaviest = max(keys, default=0)
        if heaviest > MAX_KEY_WEIGHT:
            raise _RefusedError("a key is nested too deeply to be hashed")
        if heaviest > 1:
            self.odd_keys += sum(weight > 1 for weight in keys)
            if self.odd_keys > MAX_ODD_KEYS:
                raise _RefusedError("too many keys are neither text nor small numbers")

    def _take(self, opcode: _Opcode) -> list[int]:
        takes, to_mark = opcode.takes, opcode.to_mark
        if opcode.name == "POP" and self.marks and self.marks[-1] == len(self.weights):
            takes, to_mark = 0, True  # POP takes a mark like any value
        if to_mark and not self.marks:
            raise _RefusedError("there is no mark")
        base = (self.marks.pop() if to_mark else len(self.weights)) - takes
        if base < (self.marks[-1] if self.marks else 0):
            raise _RefusedError("the stack is too short")
        taken = self.weights[base:]
        del self.weights[base:]
        return taken

    def _store(self, index: int, weight: int, number: int) -> None:
        if not 0 <= index <= number:
            raise _RefusedError("its memo index is larger than a pickler makes it")
        self.memo[index] = weight

    def _stored(self, index: int) -> int:
        weight = self.memo.get(index)
        if weight is None:
            raise _RefusedError("nothing was stored under its memo index")
        return weight


def _given(opcode: _Opcode, taken: list[int], argument: bytes) -> list[int]:
    """The weights of what an opcode leaves in the place of what it took."""
    if opcode.effect in ("put", "in place"):
        return taken[:1]
    if opcode.effect == "duplicate":
        return taken * 2
    if opcode.is_odd:
        is_small = opcode.name == "BININT" and int.from_bytes(argument, "little") < _SMALL
        return [1 if is_small else 2]
    return [min(1 + sum(taken), MAX_KEY_WEIGHT + 1)] if opcode.gives else []


def _memo_index(opcode: _Opcode, argument: bytes) -> int:
    """The index of a PUT or GET of any form; -1, which no memo holds, for text that is not a plain number."""
    if not opcode.lines:
        return int.from_bytes(argument, "little")
    return int(argument) if len(argument) <= len(f"{MAX_OPCODES}\n") and argument[:-1].isdigit() else -1
