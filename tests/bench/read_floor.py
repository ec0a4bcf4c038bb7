"""The floor of `compare`: read every byte of the files named, once.

Usage: python read_floor.py DIRECTORY...
"""

import sys
from pathlib import Path

CHUNK = 256 * 1024

if __name__ == "__main__":
    buffer = memoryview(bytearray(CHUNK))
    for directory in sys.argv[1:]:
        for path in sorted(Path(directory).glob("*.safetensors")):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
