"""The walk before the unpickler: what pickle and torch write passes, what would harm the unpickler does not."""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.checkpoints import opcodes
from registry.checkpoints.opcodes import scan
from registry.core.errors import UnsafePickle

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.text()), inner)
    ),
)


@settings(deadline=None)
@given(value=plain, protocol=st.integers(2, 5), twice=st.booleans())
def test_what_pickle_writes_passes(value: object, protocol: int, twice: bool) -> None:
    scan(pickle.dumps([value, value] if twice else value, protocol), "file")


@settings(deadline=None)
@given(value=plain)
def test_what_pickletools_shortens_passes(value: object) -> None:
    scan(pickletools.optimize(pickle.dumps(value, 5)), "file")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_writes_passes(
    save: Callable[..., Path], unpack: Callable[[Path], dict[str, bytes]], protocol: int
) -> None:
    value = {
        "state": torch.nn.Linear(3, 3).state_dict(),
        "more": OrderedDict(a={1, 2}, b=frozenset([3]), c=bytearray(b"4"), d=1 + 2j, e=torch.float32, f=b"5" * 300),
        (1, "x"): [torch.nn.Parameter(torch.ones(2, 3)).T, 2**100, -1, 70000, None, 1.5],
        "many": {str(number): number for number in range(3000)},
    }
    scan(unpack(save(value, pickle_protocol=protocol))["data.pkl"], "file")


def deep_tuple(depth: int) -> bytes:
    return b")" + b"\x85" * depth


def doubled_tuple(times: int, double: bytes = b"2\x86") -> bytes:
    return b")" + double * times


def memoized(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


HARMFUL = {
    "LONG_BINPUT": b"N" + memoized(0x7FFF_FFFF) + b".",
    "PUT": b"Np9999999\n.",
    "BINBYTES8": b"\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "BINBYTES": b"B" + struct.pack("<I", 0xFFFF_FFFF) + b".",
    "BYTEARRAY8": b"\x96" + struct.pack("<Q", 1 << 62) + b".",
    "BINUNICODE8": b"\x8d" + struct.pack("<Q", 0xFFFF_FFFF_FFFF_FFFF) + b".",
    "BINSTRING": b"T" + struct.pack("<i", -1) + b".",
    "BINUNICODE": b"X" + struct.pack("<I", 3) + b"ab",
    "BININT": b"J\0\0\0",
    "GLOBAL": b"cos\nsystem",
    "PERSID": b"P0\n.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\0.",
    "EXT4": b"\x84\x01\0\0\0.",
    "NEXT_BUFFER": b"\x97.",
    "READONLY_BUFFER": b"N\x98.",
    "STRING": b"S'\\d'\n.",
    "INT": b"I1\n.",
    "LONG4": b"\x8b" + struct.pack("<i", 4) + b"\0\0\0\x01.",
    "GET": b"g-1\n.",
    "BINGET": b"h\0.",
    "POP": b"0.",
    "TUPLE": b"Nt.",
    "TUPLE2": b"N\x86.",
    "APPEND": b"](Na.",
    "BINPUT": b"q\0N.",
    "SETITEM": b"}" + deep_tuple(5000) + b"Ns.",
    "SETITEMS": b"}(NN" + doubled_tuple(60) + b"Nu.",
    "DICT": b"(" + doubled_tuple(60) + b"Nd.",
    "ADDITEMS": b"\x8f(" + doubled_tuple(60) + b"\x90.",
    "FROZENSET": b"(" + deep_tuple(100_000) + b"\x91.",
    "FRAME": b"\x95" + struct.pack("<Q", 100) + b"N.",
    "STOP": b"N.N",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_opcode_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsafePickle, match=rf"data\.pkl: opcode {name} at byte \d+ is refused"):
        scan(b"\x80\x04" + HARMFUL[name], "file")


@pytest.mark.parametrize(
    "key",
    [
        b")" + b"q\0h\0\x86" * 60,
        b")" + b"q\0(h\0h\0t" * 60,
        b")" + b"r\0\0\0\0j\0\0\0\0\x86" * 60,
        b")" + b"p0\ng0\n\x86" * 60,
        b")" + b"2\x86(e" * 60,  # APPENDS of nothing leaves a tuple a tuple
        b")" + b"2\x86Nb" * 60,  # so does a BUILD with no state
        b"ctorch\nSize\nq\x01)" + b"2\x86q\0h\x01h\0\x85R" * 60,
        b"ctorch\nSize\nq\x01)" + b"2\x86q\0(h\x01h\0o" * 60,
        b")" + b"2\x86q\0(h\0itorch\nSize\n" * 60,
    ],
)
def test_a_key_that_grows_without_bound_is_refused_however_it_is_made(key: bytes) -> None:
    with pytest.raises(UnsafePickle, match="nested too deeply"):
        scan(b"\x80\x04}" + key + b"Ns.", "file")


@pytest.mark.parametrize(
    "body",
    [
        b"\x95\x02" + bytes(7) + b"X\x05\0\0\0" + b"r\xff\xff\xff\x7f" + b".",
        b"\x95\x0c" + bytes(7) + b"\x95\x02" + bytes(7) + b"NN0.",
    ],
    ids=["straddled", "nested"],
)
def test_an_opcode_across_the_end_of_a_frame_is_refused(body: bytes) -> None:
    """The unpickler drops what is left of the frame: behind such an opcode it would read others than were seen here."""
    with pytest.raises(UnsafePickle, match="crosses the end of its frame"):
        scan(b"\x80\x04" + body, "file")


def long1(value: int) -> bytes:
    return b"\x8a\x14" + value.to_bytes(20, "little", signed=True)


COLLIDING = [long1((2**61 - 1) * number) for number in range(1, 10_002)]
"""Integers that all have the hash 0."""


def dicts_of(keys: list[bytes], each: int) -> bytes:
    made = (b"}(" + b"N".join(keys[at : at + each]) + b"Nu" for at in range(0, len(keys), each))
    return b"\x80\x04(" + b"".join(made) + b"l."


FLOODS = {
    "one dict": dicts_of(COLLIDING, 20_000),
    "many dicts": dicts_of(COLLIDING, 3),
    "one by one": b"\x80\x04}" + b"".join(key + b"Ns" for key in COLLIDING) + b".",
    "a set": b"\x80\x04\x8f(" + b"".join(COLLIDING) + b"\x90.",
    "a frozenset": b"\x80\x04(" + b"".join(COLLIDING) + b"\x91.",
    "a whole dict": b"\x80\x04(" + b"N".join(COLLIDING) + b"Nd.",
    "tuples": dicts_of([b"K\x01\x85"] * 10_001, 20_000),
    "floats": dicts_of([b"G" + struct.pack(">d", number) for number in range(10_001)], 20_000),
    "negative": dicts_of([b"J" + struct.pack("<i", -number) for number in range(1, 10_002)], 20_000),
    "large": dicts_of([b"J" + struct.pack("<i", number) for number in range(1 << 20, (1 << 20) + 10_001)], 20_000),
    "remembered": dicts_of([COLLIDING[0] + b"q\1", *[b"h\1"] * 10_000], 20_000),
}


@pytest.mark.parametrize("name", FLOODS)
def test_keys_that_could_all_collide_are_counted(name: str) -> None:
    with pytest.raises(UnsafePickle, match="too many keys"):
        scan(FLOODS[name], "file")


def test_keys_that_collide_are_accepted_while_they_are_few() -> None:
    scan(dicts_of(COLLIDING[:10_000], 20_000), "file")


@pytest.mark.parametrize("protocol", [2, 4])
def test_any_number_of_keys_that_cannot_collide_is_accepted(protocol: int) -> None:
    scan(
        pickle.dumps([{str(number): None for number in range(100_000)}, dict.fromkeys(range(100_000))], protocol),
        "file",
    )


def test_a_large_key_that_is_not_nested_beyond_reason_passes() -> None:
    scan(pickle.dumps({tuple(range(500)): 1}, 2), "file")


def test_tuples_that_are_no_keys_may_be_nested() -> None:
    scan(b"\x80\x02" + deep_tuple(5000) + b".", "file")


@pytest.mark.parametrize("data", [b"", b"\x80", b"N.", b"\x80\x06N.", b"\x80\x02", b"\x80\x02N", b"\x80\x02\xff."])
def test_what_is_no_pickle_of_a_known_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafePickle):
        scan(data, "file")


def test_a_pickle_of_too_many_opcodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opcodes, "MAX_OPCODES", 1000)
    scan(b"\x80\x02N" + b"20" * 498 + b"N.", "file")
    with pytest.raises(UnsafePickle, match="too many opcodes"):
        scan(b"\x80\x02N" + b"20" * 499 + b".", "file")
