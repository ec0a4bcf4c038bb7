"""The trainer as a script, from any directory: `python tests/wired/train.py RUN_DIR --base BASE_DIR`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # the parent of this package, not its inside
    from wired.trainer import main

    main()
