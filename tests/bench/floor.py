"""The floor of `add`: a process that does only what cannot be left out, one step after the other.

Usage: python floor.py CHECKPOINT_FILE ADAPTER_FILE [TARGET]
One sha256 pass over the checkpoint, one over the adapter, and with TARGET one durable write of the adapter.
"""

import hashlib
import os
import sys

CHUNK = 256 * 1024


def sha256(path: str) -> str:
    """Hash a file with one buffer that stays in the cache."""
    hasher, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.hexdigest()


def copy_durably(source: str, target: str) -> None:
    """Write and fsync."""
    buffer = memoryview(bytearray(CHUNK))
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            writer.write(buffer[:count])
        os.fsync(writer.fileno())


if __name__ == "__main__":
    checkpoint, adapter, *target = sys.argv[1:]
    sha256(checkpoint)
    sha256(adapter)
    if target:
        copy_durably(adapter, *target)
