"""How commands are grouped."""

from __future__ import annotations

from typing import Any

import typer


def group(**settings: Any) -> typer.Typer:
    """A group of commands, without the markup, the completion and the tracebacks that typer adds by itself."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)
