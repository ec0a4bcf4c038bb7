"""The pickle inside a torch.save file, turned into plain containers, tensor references and inert placeholders. Runs
nothing that the pickle names, and knows nothing of the file that the tensors' bytes are in."""

from __future__ import annotations

import io
import pickle
from os import PathLike

from registry.checkpoints.inert import Distributed, Inert, inert
from registry.checkpoints.opcodes import scan
from registry.checkpoints.rebuild import KNOWN, Function, StorageRef, TensorRef, storage_of
from registry.core.errors import MalformedFile, UnsafePickle

__all__ = ["MAX_PICKLE", "Distributed", "Inert", "StorageRef", "TensorRef", "load"]

MAX_PICKLE = 64 << 20
"""Largest data.pkl that is read, in bytes; torch needs about 300 per tensor."""

MAX_GLOBALS = 4096
"""Most different globals that one pickle may name: each becomes a class of over 1 kB."""

_RAISED_BY_UNPICKLER = (
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What CPython's unpickler raises on damaged bytes, besides its own error."""


def load(data: bytes, path: str | PathLike[str]) -> object:
    """Read data.pkl into dicts, lists, tuples, scalars, TensorRef, StorageRef and Inert.

    As in any pickle, containers may share parts, hold themselves, and be nested deeper than Python can recurse: whoever
    walks them remembers where it has been, and keeps its own stack.

    Raises:
        MalformedFile: the pickle is damaged, or describes a tensor that cannot be.
        UnsafePickle: it is too large, or uses what a checkpoint never needs.
    """
    if len(data) > MAX_PICKLE:
        raise UnsafePickle("too large", path=path, key="data.pkl", expected=f"<= {MAX_PICKLE} bytes", found=len(data))
    scan(data, path)
    try:
        return _Unpickler(io.BytesIO(data), encoding="utf-8").load()
    except pickle.UnpicklingError as error:
        raise MalformedFile(f"not a valid checkpoint ({error})", path=path, key="data.pkl") from error
    except _RAISED_BY_UNPICKLER as error:
        # Its text is left out: it may be the repr of an object without bounds.
        raise MalformedFile(f"not a valid pickle ({type(error).__name__})", path=path, key="data.pkl") from error


class _Unpickler(pickle.Unpickler):
    """CPython's unpickler with both ways out of the pickle closed: globals and persistent ids."""

    def __init__(self, file: io.BytesIO, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._inert: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str) -> Function | type[Inert]:
        global_name = ascii(f"{module}.{name}")[1:-1]
        if global_name in KNOWN:
            return KNOWN[global_name]
        if global_name not in self._inert:
            if len(self._inert) == MAX_GLOBALS:
                raise pickle.UnpicklingError(f"it names more than {MAX_GLOBALS} globals")
            self._inert[global_name] = inert(global_name)
        return self._inert[global_name]

    def persistent_load(self, pid: object) -> StorageRef | Inert:
        return storage_of(pid)
