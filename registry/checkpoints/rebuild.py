"""What the globals in a checkpoint's pickle stand for: a reference to a storage or tensor, a dict, or an inert
placeholder. Knows how torch describes a tensor, and nothing of unpickling or of the file that the bytes are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any, NoReturn, TypeGuard

from registry.checkpoints.inert import DISTRIBUTED, Distributed, Inert, Placement, Stated
from registry.core.dtypes import BY_NAME, DType
from registry.core.tensor import extent

MAX_DIMENSIONS = 64
"""What torch allows."""

MAX_KEY = 20
"""Digits in the longest storage key; old versions of torch used addresses."""

_MAX_INTEGER = 2**63 - 1
_RANKS = ("_flatten_rank_map", "_flatten_mesh_list")  # torch renamed it
_SLOTTED = 2  # the state of an object with slots: that of its __dict__, and of the slots
_STORAGE_DTYPES = {
    "UntypedStorage": "uint8",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "BoolStorage": "bool",
}
_STORAGES = {
    f"{module}.{name}": BY_NAME[dtype]
    for module in ("torch", "torch.storage", "torch.cuda")
    for name, dtype in _STORAGE_DTYPES.items()
}
_DENSE_TYPES = {"torch.Tensor", "torch._tensor.Tensor", "torch.nn.parameter.Parameter", "torch.nn.Parameter"}


class _Unalterable:
    """What a pickle may not change once it is made.

    The BUILD opcode hands a state to `__setstate__`, or where there is none writes it into the object, past
    `frozen=True` and every check. On an object that outlives one load it would do so for the next file too.
    """

    def __setstate__(self, state: object) -> NoReturn:
        raise UnpicklingError(f"a state is given to a {type(self).__name__}")


@dataclass(frozen=True)
class StorageRef(_Unalterable):
    """A storage that the file holds: its element type, its key, and its size in elements."""

    dtype: DType
    key: str
    numel: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class TensorRef(_Unalterable):
    """A dense tensor that the file holds; equal for two names of one view.

    Attributes:
        dtype: element type.
        storage_key: names the record that holds the storage.
        storage_nbytes: size of the whole storage.
        offset: where the first element lies in the storage, in elements.
        shape, stride: sizes, and steps in elements. The view is known to lie within the storage.
        conj, neg: whether the stored elements are yet to be conjugated or negated.
    """

    dtype: DType
    storage_key: str
    storage_nbytes: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    conj: bool = False
    neg: bool = False


class Function(_Unalterable):
    """One of the functions below, as a pickle sees it: it can be called, and nothing else."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)


class OrderedDict(dict[Any, Any]):
    """A dict that lets a pickle give it attributes, as `nn.Module.state_dict` does, and forgets them."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """Ignore the state."""


def storage_of(pid: object) -> StorageRef | Inert:
    """The storage that a persistent id of torch's names; inert where its elements are of a quantized type.

    Raises:
        UnpicklingError: the id is not torch's.
    """
    match pid:
        case ("storage", type() as kind, str() as key, str(), int() as numel) if issubclass(kind, Inert):
            if not (key.isascii() and key.isdecimal() and len(key) <= MAX_KEY and _is_size(numel)):
                raise UnpicklingError("a storage's key or size is not a number")
            dtype = _STORAGES.get(kind.global_name)
            return kind() if dtype is None else StorageRef(dtype, key, numel)
    raise UnpicklingError("a persistent id is not torch's")


def _tensor(
    storage: object, layout: tuple[object, object, object], *, dtype: DType | None = None, metadata: object = None
) -> TensorRef | Inert:
    """A view of `storage`, given as offset, shape and stride; of the storage's own dtype where none is given."""
    if isinstance(storage, Inert):
        return storage
    offset, shape, stride = layout
    if not isinstance(storage, StorageRef) or not _is_size(offset):
        raise UnpicklingError("a tensor has no storage, or no place in it")
    if not _is_sizes(shape) or not _is_sizes(stride) or len(shape) != len(stride):
        raise UnpicklingError("a tensor's shape and stride are not two equally long tuples of sizes")
    if not isinstance(metadata, dict | None):
        raise UnpicklingError("a tensor's metadata is not a dict")
    dtype = dtype or storage.dtype
    elements = extent(shape, stride)
    if elements and (offset + elements) * dtype.itemsize > storage.nbytes:
        raise UnpicklingError("a tensor reaches beyond its storage")
    conj, neg = (bool(metadata and metadata.get(bit)) for bit in ("conj", "neg"))
    return TensorRef(dtype, storage.key, storage.nbytes, offset, shape, stride, conj, neg)


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_INTEGER


def _is_sizes(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and len(value) <= MAX_DIMENSIONS and all(map(_is_size, value))


def _rebuild_tensor(storage: object, offset: object, shape: object, stride: object) -> TensorRef | Inert:
    return _tensor(storage, (offset, shape, stride))


def _rebuild_tensor_v2(
    storage: object,
    offset: object,
    shape: object,
    stride: object,
    _grad: object,
    _hooks: object,
    metadata: object = None,
) -> TensorRef | Inert:
    return _tensor(storage, (offset, shape, stride), metadata=metadata)


def _rebuild_tensor_v3(
    storage: object,
    offset: object,
    shape: object,
    stride: object,
    _grad: object,
    _hooks: object,
    dtype: object,
    metadata: object = None,
) -> TensorRef | Inert:
    if not isinstance(dtype, type) or not issubclass(dtype, Inert):
        raise UnpicklingError("a tensor's dtype is not one")
    known = BY_NAME.get(dtype.global_name.removeprefix("torch."))
    return dtype() if known is None else _tensor(storage, (offset, shape, stride), dtype=known, metadata=metadata)


def _rebuild_parameter(data: object, *_: object) -> TensorRef | Inert:
    if not isinstance(data, TensorRef | Inert):
        raise UnpicklingError("a parameter has no tensor")
    return data


def _rebuild_from_type_v2(rebuild: object, kind: object, arguments: object, state: object) -> object:
    """A tensor of a Python type: a plain one with attributes, or of a subclass, whose bytes could mean anything."""
    if not isinstance(kind, type) or not issubclass(kind, Inert) or not isinstance(arguments, tuple):
        raise UnpicklingError("a tensor's type is not one")
    if isinstance(rebuild, Function) and kind.global_name in _DENSE_TYPES:
        return rebuild(*arguments)
    if kind.global_name.startswith(DISTRIBUTED) and kind.global_name.endswith(".DTensor"):
        return _distributed(arguments, state) or kind()
    return kind()


def _distributed(arguments: tuple[object, ...], state: object) -> Distributed | None:
    """A DTensor, as `torch._utils._rebuild_wrapper_subclass` is given it; None where it is not as torch saves one."""
    attributes = state[1] if isinstance(state, tuple) and len(state) == _SLOTTED else state
    match arguments, attributes:
        case (_, type() as element, shape, *_), {"_local_tensor": TensorRef() as local, "_spec": Stated() as spec}:
            dtype = BY_NAME.get(element.global_name.removeprefix("torch.")) if issubclass(element, Inert) else None
            placements = spec.state.get("placements")
            if dtype is None or not _is_sizes(shape) or not isinstance(placements, tuple):
                return None
            if not all(isinstance(each, Inert) for each in placements):
                return None
            made = Distributed()
            made.shape, made.dtype, made.local = shape, dtype, local
            made.placements = tuple(map(_placement, placements))
            mesh = spec.state.get("mesh")
            stated = mesh.state if isinstance(mesh, Stated) else {}
            made.coordinate = _sizes(stated.get("_coordinate_on_dim"))
            made.ranks = next(filter(None, (_sizes(stated.get(name)) for name in _RANKS)), None)
            return made
    return None


def _sizes(value: object) -> tuple[int, ...] | None:
    """`value` as a tuple, if it is a list or tuple of sizes."""
    if not isinstance(value, list | tuple) or not all(map(_is_size, value)):
        return None
    return tuple(value)


def _placement(value: Inert) -> Placement:
    dim = value.state.get("dim") if isinstance(value, Stated) else None
    kind = value.global_name.rpartition(".")[2]
    if kind != "Shard":
        return Placement(kind, None)
    return Placement(kind, dim) if _is_size(dim) else Placement("Shard of no dimension", None)


def _size(sizes: object) -> object:
    if not isinstance(sizes, tuple):
        raise UnpicklingError("a torch.Size is not made of a tuple")
    return sizes


def _ordered_dict() -> OrderedDict:
    """An empty one: its items follow one by one, so that each key was seen by `opcodes.scan` before it is hashed."""
    return OrderedDict()


KNOWN = {
    "collections.OrderedDict": Function(_ordered_dict),
    "torch.Size": Function(_size),
    "torch._utils._rebuild_tensor": Function(_rebuild_tensor),
    "torch._utils._rebuild_tensor_v2": Function(_rebuild_tensor_v2),
    "torch._utils._rebuild_tensor_v3": Function(_rebuild_tensor_v3),
    "torch._utils._rebuild_parameter": Function(_rebuild_parameter),
    "torch._utils._rebuild_parameter_with_state": Function(_rebuild_parameter),
    "torch._tensor._rebuild_from_type_v2": Function(_rebuild_from_type_v2),
}
"""The only globals that a pickle can reach. All are made here, and none can be altered from a pickle."""
