"""The command line. The only code that reads arguments or the environment, or prints."""

import os
import signal

__all__ = ["INTERRUPTED", "interrupted", "main"]

INTERRUPTED = 130
_SAYS = b"aorlta-reg: interrupted; nothing half-done is visible\n"


def main() -> None:
    """Run the command line.

    While it loads, which takes longest of all that most commands do, an interrupt ends the process at once: raised in
    the middle of an import, it could be swallowed there, or be told with a traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for what a shell starts in the background
        signal.signal(signal.SIGINT, interrupted)
    from registry.cli.app import main as run  # noqa: PLC0415

    run()


def interrupted(_signal: int, _frame: object) -> None:
    """Say so, and end the process without undoing anything: for when nothing was begun, or all is done."""
    try:
        os.write(2, _SAYS)
    finally:
        os._exit(INTERRUPTED)
