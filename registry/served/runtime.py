"""torch as a dependency that need not be there, and what of it decides the bits of a result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from registry.core.errors import Refused


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


def conditions() -> dict[str, str | int]:
    """What the bits of a product depend on beside its factors: torch's version, the device and the thread count."""
    import torch  # noqa: PLC0415

    return {"torch": torch.__version__, "device": "cpu", "threads": torch.get_num_threads()}
