"""Element types: one table that joins torch's names, safetensors' names and sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        name: torch's name (`float32`).
        safetensors: the name in a safetensors header, or None where the format has none.
        itemsize: bytes per element.
        swap_width: bytes per component that changes with byte order (half of itemsize for complex types).
        exponent_mask: the bits of one element that are all ones in an infinity or NaN, or None.
    """

    name: str
    safetensors: str | None
    itemsize: int
    swap_width: int
    exponent_mask: int | None = None

    def __str__(self) -> str:
        return self.name


_TABLE = (  # in the order of safetensors' own type list, which decides the order of tensors in a file
    DType("bool", "BOOL", 1, 1),
    DType("uint8", "U8", 1, 1),
    DType("int8", "I8", 1, 1),
    DType("float8_e5m2", "F8_E5M2", 1, 1),
    DType("float8_e4m3fn", "F8_E4M3", 1, 1),
    DType("float8_e5m2fnuz", "F8_E5M2FNUZ", 1, 1),
    DType("float8_e4m3fnuz", "F8_E4M3FNUZ", 1, 1),
    DType("float8_e8m0fnu", "F8_E8M0", 1, 1),
    DType("float4_e2m1fn_x2", None, 1, 1),
    DType("int16", "I16", 2, 2),
    DType("uint16", "U16", 2, 2),
    DType("float16", "F16", 2, 2, 0x7C00),
    DType("bfloat16", "BF16", 2, 2, 0x7F80),
    DType("int32", "I32", 4, 4),
    DType("uint32", "U32", 4, 4),
    DType("float32", "F32", 4, 4, 0x7F80_0000),
    DType("complex32", None, 4, 2),
    DType("complex64", "C64", 8, 4),
    DType("float64", "F64", 8, 8, 0x7FF0_0000_0000_0000),
    DType("int64", "I64", 8, 8),
    DType("uint64", "U64", 8, 8),
    DType("complex128", None, 16, 8),
)
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
}

BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in _TABLE} | {
    alias: dtype for dtype in _TABLE for alias, name in _ALIASES.items() if name == dtype.name
}
BY_SAFETENSORS: dict[str, DType] = {dtype.safetensors: dtype for dtype in _TABLE if dtype.safetensors is not None}

FILE_ORDER: dict[DType, int] = {dtype: rank for rank, dtype in enumerate(reversed(_TABLE))}
"""In which order a safetensors file holds its tensors: the stock writer's, wide types first."""
LORA_DTYPES = frozenset(BY_NAME[name] for name in ("float16", "bfloat16", "float32", "float64"))
"""The element types in which engines and peft load LoRA factors."""
