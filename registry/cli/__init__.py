"""The command line. The only code that reads arguments or the environment, or prints."""

from registry.cli.app import main

__all__ = ["main"]
