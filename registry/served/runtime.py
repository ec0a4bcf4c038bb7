"""torch as a dependency that need not be there, and what of it decides the bits of a result."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from registry.core.errors import Refused, StorageError, shortened

_SAID = 500  # characters of what torch says
DEVICES = ("cpu", "cuda")
"""torch calls AMD's GPUs `cuda` too."""


def require_torch() -> None:
    """Import torch, which takes seconds.

    Raises:
        Refused: it is not installed.
    """
    try:
        import torch  # noqa: F401, PLC0415
    except ImportError as error:
        raise Refused("needs torch", hint="pip install 'aorlta-registry[torch]'") from error


@contextmanager
def single_threaded() -> Iterator[None]:
    """Keep torch to the thread that calls it: its bits then do not depend on how many cores there are.

    Cores are put to use by working on several things at once, not by splitting each of many small operations.
    """
    import torch  # noqa: PLC0415

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def calculating() -> Iterator[None]:
    """Turn what torch and the allocators raise into an error of ours; also a decorator.

    Raises:
        StorageError: there is not enough memory, or torch failed otherwise; its own first line is told.
    """
    try:
        yield
    except MemoryError as error:
        raise StorageError("not enough memory for this calculation") from error
    except RuntimeError as error:  # torch has no class of its own for most of what goes wrong in it
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise StorageError("torch could not calculate this", found=shortened(said, _SAID)) from error


def workers(count: int) -> ThreadPoolExecutor:
    """A pool of threads, each of which keeps torch to itself.

    A thread does not take the setting over from the one that made it before its first product, which would still be
    split: so every thread is told itself.
    """
    import torch  # noqa: PLC0415

    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


def require_device(name: str) -> None:
    """Refuse a device that torch cannot calculate on.

    Raises:
        Refused: it is unknown, or not there.
    """
    import torch  # noqa: PLC0415

    if name not in DEVICES or (name == "cuda" and not torch.cuda.is_available()):
        raise Refused("torch cannot calculate on this device here", found=name, expected=" or ".join(DEVICES))


def conditions(device: str = "cpu") -> dict[str, str | int]:
    """What the bits of a product depend on beside its factors: torch's version, the device and the thread count."""
    import torch  # noqa: PLC0415

    name = device if device == "cpu" else torch.cuda.get_device_name()
    return {"torch": torch.__version__, "device": name, "threads": torch.get_num_threads()}
