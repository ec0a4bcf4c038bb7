"""What stands for the globals of a pickle that are not rebuilt: they do nothing. Some remember, as plain values, what a
DTensor is made of. Knows nothing of unpickling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from registry.core.dtypes import DType

if TYPE_CHECKING:
    from registry.checkpoints.rebuild import TensorRef


class Inert:
    """What a global that this reader does not know stands for: a subclass, and when it is called, an instance of it.

    Accepts everything that a pickle can do to an object, and does none of it. Only items that are set can be read back,
    so that tensors inside a `defaultdict` or another kind of mapping are found.

    Attributes:
        global_name: `module.name`, as the pickle spells it, in ASCII.
        items_: what was set by key.
    """

    __slots__ = ("items_",)
    global_name: ClassVar[str] = ""
    items_: dict[Any, Any]

    def __new__(cls, *_: object, **__: object) -> Self:
        self = super().__new__(cls)
        self.items_ = {}
        return self

    def __repr__(self) -> str:
        return f"<inert {self.global_name}>"

    def __call__(self, *_: object, **__: object) -> Self:
        return type(self)()

    def __setstate__(self, state: object) -> None:
        """Ignore the state."""

    def __setitem__(self, key: object, value: object) -> None:
        self.items_[key] = value

    def append(self, value: object) -> None:
        """Ignore the value."""

    def extend(self, values: object) -> None:
        """Ignore the values."""

    def add(self, value: object) -> None:
        """Ignore the value."""


class Stated(Inert):
    """A placeholder that remembers the attributes that a pickle gives it, as plain values."""

    __slots__ = ("state",)
    state: dict[Any, Any]

    def __new__(cls, *_: object, **__: object) -> Self:
        self = super().__new__(cls)
        self.state = {}
        return self

    def __setstate__(self, state: object) -> None:
        """Keep it, if it is a mapping."""
        if isinstance(state, dict):
            self.state = state


class Placement(NamedTuple):
    """How a DTensor lies on one dimension of a mesh of ranks: `Shard` along its own dimension `dim`, `Replicate`, or
    what else torch calls it."""

    kind: str
    dim: int | None


class Distributed(Inert):
    """A DTensor: what one rank holds of a tensor. Elsewhere than among shards it is as inert as any.

    Attributes:
        shape, dtype: of the whole tensor.
        local: the rank's part.
        placements: one for each dimension of the mesh.
        coordinate: where in the mesh this rank is; None where that is not said.
        ranks: all ranks of the mesh, row by row; None where that is not said.
    """

    __slots__ = ("coordinate", "dtype", "local", "placements", "ranks", "shape")
    global_name = "torch.distributed.tensor.DTensor"
    shape: tuple[int, ...]
    dtype: DType
    local: TensorRef
    placements: tuple[Placement, ...]
    coordinate: tuple[int, ...] | None
    ranks: tuple[int, ...] | None


_STATED = frozenset({"DTensorSpec", "DeviceMesh", "Shard", "Replicate"})
DISTRIBUTED = "torch.distributed."


def inert(global_name: str) -> type[Inert]:
    """A placeholder for one global. A class, because a pickle may only make objects of classes."""
    remembers = global_name.startswith(DISTRIBUTED) and global_name.rpartition(".")[2] in _STATED
    return type("Inert", (Stated if remembers else Inert,), {"__slots__": (), "global_name": global_name})
