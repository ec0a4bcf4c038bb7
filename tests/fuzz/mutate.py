"""Damaging bytes: blindly, and as what they are (JSON, safetensors, zip, pickle). All by one random generator."""

from __future__ import annotations

import io
import json
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]
"""Given the generator, what to damage, and others of its kind to take parts from."""

MAX_LENGTH = 1 << 20
"""Of what is made here: the reader's bounds are relative to it."""

NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    64,
    127,
    128,
    255,
    256,
    0xFFFF,
    1 << 31,
    (1 << 32) - 1,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
)
TEXTS = (
    "",
    "..",
    "../../etc/passwd",
    "/dev/zero",
    "\0",
    "\x1b[2J\x1b]8;;http://x\x07",
    "\u202e\u2066",
    "e" + "\u0301" * 500,
    "\ud800",
    "x" * 5000,
    "nan",
    "(a+)+$",
    "a?" * 40 + "a" * 40,
    "sha256:" + "0" * 64,
    "model.layers.0.self_attn.q_proj",
    "completed",
)


def mutated(rng: Random, kind: str, pool: Sequence[bytes]) -> bytes:
    """One of the `pool`, damaged once or a few times, as `kind` of thing that it is, or blindly."""
    data = rng.choice(pool)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        mutation = rng.choice((*KINDS[kind], blindly))
        with suppress(Exception):  # what is damaged already may be no such thing any more
            data = mutation(rng, data, pool)
    return data[:MAX_LENGTH]


def blindly(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:  # noqa: PLR0911
    """Bits, bytes, ranges and lengths, whatever they mean."""
    at, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    start, stop = min(at, other), min(max(at, other), min(at, other) + 4096)
    match rng.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[:start] + data[stop:]
        case 2:
            return data[:stop] + data[start:stop] * rng.choice((1, 1, 2, 50)) + data[stop:]
        case 3:
            taken = rng.choice(pool)
            begin = rng.randrange(len(taken) + 1)
            return data[:start] + taken[begin : begin + stop - start] + data[stop:]
        case 4:
            return data + rng.randbytes(rng.choice((1, 8, 100)))
        case 5:
            size, order = rng.choice("BHIQ"), rng.choice("<>")
            field = struct.pack(order + size, rng.choice(NUMBERS) & ((1 << 8 * struct.calcsize(size)) - 1))
            return data[:at] + field + data[at + len(field) :]
        case 6:
            return data[:at] + rng.randbytes(rng.choice((1, 1, 4))) + data[at + 1 :]
        case _:
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 8))):
                if changed:
                    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)


def json_value(rng: Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    """A value, key or place in a JSON document."""
    return _json_text(rng, _edited(rng, json.loads(data)))


def _edited(rng: Random, value: Any) -> Any:
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        match rng.randrange(6):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[rng.choice((*TEXTS, str(key).upper()))] = value.pop(key)
            case 2 if isinstance(value, dict):
                value[rng.choice(TEXTS)] = _odd(rng)
            case 3 if isinstance(value, list):
                value.insert(key, _odd(rng))
            case _:
                value[key] = _edited(rng, value[key])
        return value
    return _odd(rng)


def _odd(rng: Random) -> Any:
    deep: Any = []
    for _ in range(rng.choice((1, 60, 70, 400))):
        deep = rng.choice(([deep], {"a": deep}))
    huge = 10 ** rng.choice((20, 400, 4200))
    odd = (
        None,
        True,
        False,
        [],
        {},
        deep,
        huge,
        -huge,
        1e308,
        5e-324,
        -0.0,
        0.5,
        rng.choice(TEXTS),
        rng.choice(NUMBERS),
    )
    return rng.choice((*odd, [rng.choice(NUMBERS)] * rng.choice((1, 2, 100)), {rng.choice(TEXTS): rng.choice(NUMBERS)}))


def _json_text(rng: Random, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    match rng.randrange(14):
        case 0:
            text = "\ufeff" + text
        case 1:
            text = text.replace("1", "1" * 5000, 1)
        case 2:
            text = text.replace("{", '{"a":1,"a":1,', 1)
        case 3:
            text = text.replace("0", rng.choice(("NaN", "-Infinity", "1e999", "0x1", "1E400")), 1)
        case 4:
            text = text.replace(":", ":" + "[" * 100_000, 1)
        case 5:
            text = text.replace('"', '"\\ud800', 1)
    return text.encode("utf-8", "surrogatepass")


def safetensors(rng: Random, data: bytes, pool: Sequence[bytes]) -> bytes:
    """The header of a safetensors file, and the length in front of it."""
    length = int.from_bytes(data[:8], "little")
    header = json_value(rng, data[8 : 8 + length], pool)
    stated = len(header) if rng.random() < 0.9 else rng.choice(NUMBERS) & (2**64 - 1)
    return stated.to_bytes(8, "little") + header + data[8 + length :]


_SIGNATURES = (b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\7\x08")


def zip_field(rng: Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    """A field of one of a zip file's headers: any of them, of the records, their list, or its ends."""
    signature = rng.choice(_SIGNATURES)
    places = [at for at in range(len(data)) if data.startswith(signature, at)]
    at = rng.choice(places) + 4 + 2 * rng.randrange(24)
    field = struct.pack("<" + rng.choice("HIQ"), rng.choice(NUMBERS) & 0xFFFF)
    return data[:at] + field + data[at + len(field) :]


def zip_records(rng: Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    """The records of a zip file: compressed, doubled, renamed, left out, exchanged; or the pickle among them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = [(name, archive.read(name)) for name in archive.namelist()]
    number = rng.randrange(len(records))
    name, content = records[number]
    how = zipfile.ZIP_STORED
    match rng.randrange(9):
        case 0:
            how = zipfile.ZIP_DEFLATED
            content = content + bytes(1 << 20)
        case 1:
            records.append((name, rng.choice(records)[1]))
        case 2:
            name = name.rpartition("/")[0] + "/" + rng.choice(TEXTS).encode("utf-8", "replace").decode()
        case 3:
            del records[number]
            number = rng.randrange(len(records))
            name, content = records[number]
        case 4:
            content = rng.choice(records)[1]
        case _:
            number = next(at for at, (each, _) in enumerate(records) if each.endswith("data.pkl"))
            name = records[number][0]
            content = pickle_opcodes(rng, records[number][1], [records[number][1]])
    records[number] = name, content
    return zipped(records, how)


def zipped(records: Sequence[tuple[str, bytes]], how: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of these records; unlike `zipfile`, without a word about names that come twice."""
    body, listed = b"", b""
    for name, content in records:
        packed = zlib.compress(content, 9)[2:-4] if how else content
        common = struct.pack("<5H3I", 20, 0, how, 0, 0, zlib.crc32(content), len(packed), len(content))
        raw = name.encode()
        listed += (
            b"PK\1\2" + struct.pack("<H", 20) + common + struct.pack("<5H2I", len(raw), 0, 0, 0, 0, 0, len(body)) + raw
        )
        body += b"PK\3\4" + common + struct.pack("<2H", len(raw), 0) + raw + packed
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(records), len(records), len(listed), len(body), 0)
    return body + listed + end


SOUP = (
    *(bytes([byte]) for byte in b"()]}NteadlsuRob201Q\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x81.\x97\x98"),
    *(
        b"q\1",
        b"q\2",
        b"h\1",
        b"h\2",
        b"r\xff\xff\xff\x7f",
        b"j\1\0\0\0",
        b"p1\n",
        b"g1\n",
        b"K\1",
        b"M\xff\xff",
        b"J\xff\xff\xff\xff",
    ),
    *(
        b"X\1\0\0\0a",
        b"X\xff\xff\xff\xff",
        b"\x8e" + b"\xff" * 8,
        b"G?\xf0\0\0\0\0\0\0",
        b"\x8a\2\1\1",
        b"\x8b\xff\xff\xff\x7f",
    ),
    *(b"\x95" + b"\xff" * 8, b"\x95\1" + bytes(7), b"\x82\1", b"P1\n", b"S'a'\n", b"I1\n", b"L1L\n", b"F1\n", b"VA\n"),
    *(
        b"cos\nsystem\n",
        b"cbuiltins\nexec\n",
        b"itorch\nTensor\n",
        b"ctorch\nfloat32\n",
        b"ctorch\nSize\n",
        b"ctorch\nFloatStorage\n",
    ),
    *(b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n", b"ccollections\nOrderedDict\n"),
    *(b"ctorch._tensor\n_rebuild_from_type_v2\n", b"ccopyreg\n_reconstructor\n", b"ccollections\ndefaultdict\n"),
    b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ",
    b"X\x1f\0\0\0model.layers.0.self_attn.q_proj.",
)


def pickle_opcodes(rng: Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    """The opcodes of a pickle: dropped, doubled, moved, put in between, or their arguments changed."""
    starts = [at for _, _, at in pickletools.genops(data)]
    opcodes = [data[start:stop] for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(1, len(opcodes))
        match rng.randrange(7):
            case 0:
                del opcodes[at]
            case 1:
                opcodes.insert(at, opcodes[at])
            case 2:
                opcodes.insert(at, opcodes.pop(rng.randrange(1, len(opcodes))))
            case 3:
                opcodes[at:at] = [rng.choice(SOUP) for _ in range(rng.choice((1, 2, 8)))]
            case 4:
                opcodes[at:at] = [rng.choice(SOUP)] * rng.choice((10, 1000, 30_000))
            case 5:
                opcodes[at] = opcodes[at][:1] + rng.randbytes(len(opcodes[at]) - 1)
            case _:
                opcodes[at] = rng.choice(SOUP)
    return b"".join(opcodes)


def words(rng: Random, data: bytes, _pool: Sequence[bytes]) -> bytes:
    """Odd words in a text."""
    at = rng.randrange(len(data) + 1)
    word = rng.choice((*TEXTS, *map(str, NUMBERS), "@", "@latest", ":", "=", ">=", ",")).encode(
        "utf-8", "surrogatepass"
    )
    return data[:at] + word + data[at:]


KINDS: dict[str, tuple[Mutation, ...]] = {
    "json": (json_value, json_value),
    "safetensors": (safetensors, safetensors),
    "zip": (zip_field, zip_records, zip_records),
    "pickle": (pickle_opcodes, pickle_opcodes),
    "text": (words,),
}
