"""The one sink: results to stdout as text or JSON, everything else to stderr, with nothing in it that a terminal would
obey."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO

import typer

from registry.core.errors import RegistryError, shortened

_BINARY_STEP = 1024
_ERASE = "\r\x1b[K"
_STEPS = 100
_LONG = 64 << 20  # bytes of work for which a bar is worth its lines


LINE, CELL, _LABEL = 5000, 200, 60
"""The most characters of a line of text, of a cell in a table, and in front of a progress bar: JSON has all of them."""
_MARKS = 4  # combining marks on one character; a flood of them covers the lines above and below


def printable(text: object) -> str:
    """`text` on one line, with control, bidirectional and unassigned characters escaped, and floods of accents."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        plain = char.isprintable() and marks <= _MARKS
        shown.append(char if plain else char.encode("unicode_escape", "surrogatepass").decode("ascii"))
    return "".join(shown)


def size(count: int) -> str:
    """A number of bytes for people."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= _BINARY_STEP and len(units) > 1:
        value /= _BINARY_STEP
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def cell_text(value: object) -> str:
    """A value for a column, which is as wide as the widest."""
    return shortened(printable(value), CELL)


def line_text(value: object) -> str:
    """A value for a line of its own."""
    return shortened(printable(value), LINE)


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Aligned columns."""
    cells = [[cell_text(cell) for cell in header], *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


class Output:
    """Prints one command's output. With `as_json`, stdout gets one JSON document and errors are JSON on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._drawn = False  # whether a bar stands on the terminal's last line

    def line(self, text: str) -> None:
        """A line of the human result as it comes, while the command goes on."""
        if not self._as_json:
            self._clear()
            print(text, flush=True)  # noqa: T201

    def result(self, document: dict[str, Any], text: str | None = None) -> None:
        """The result: the document, or the text for people if there is any beside the lines already printed."""
        if self._as_json:
            print(json.dumps(document, indent=2, allow_nan=False), flush=True)  # noqa: T201
        elif text is not None:
            print(text, flush=True)  # noqa: T201

    def objects(self, documents: Iterable[dict[str, Any]], text: str | None = None) -> None:
        """The result as a stream: one compact object a line, each printed before the next is made; or the text."""
        if not self._as_json:
            if text is not None:
                print(text, flush=True)  # noqa: T201
            return
        for document in documents:
            print(json.dumps(document, separators=(",", ":"), allow_nan=False))  # noqa: T201
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """What a person may want to know."""
        if not self._as_json:
            self._clear()
            _err(line_text(text))

    def error(self, error: RegistryError) -> None:
        """Why something was not done."""
        if self._as_json:
            _err(json.dumps({"error": error_document(error)}))
        else:
            self._clear()
            _err(f"aorlta-reg: {line_text(error)}")

    def _clear(self) -> None:
        """Take away what stands of a bar on the line that is written next."""
        if self._drawn:
            self._drawn = False
            with suppress(OSError):
                print(_ERASE, end="", file=sys.stderr, flush=True)  # noqa: T201

    @contextmanager
    def progress(
        self, label: str, standing: Callable[[], str] | None = None
    ) -> Iterator[Callable[[int, int], None] | None]:
        """A progress bar for long work on a terminal; None, so that nothing is even counted, in a pipe.

        `standing` tells what is shown behind it.
        """
        if self._as_json or not sys.stderr.isatty():
            yield None
            return
        with ExitStack() as stack:
            bar: Any = None
            done = 0

            def advance(count: int, total: int) -> None:
                nonlocal bar, done
                if total < _LONG:
                    return
                if bar is None:
                    made: Any = typer.progressbar(
                        length=total,
                        label=shortened(printable(label), _LABEL),
                        file=sys.stderr,
                        item_show_func=None if standing is None else lambda _: standing(),
                    )
                    bar = stack.enter_context(made)
                    self._drawn = True
                before, done = done * _STEPS // total, done + count
                if done * _STEPS // total > before:  # a step is seen, and drawing costs more than most reads
                    bar.update(done - bar.pos)
                    self._drawn = True

            yield advance
            self._drawn = False


def error_document(error: RegistryError) -> dict[str, Any]:
    """An error as JSON: its kind, its message, and the facts the message was built from."""
    facts = {
        "path": error.path,
        "key": error.key,
        "found": error.found,
        "expected": error.expected,
        "hint": error.hint,
    }
    stated = {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in facts.items()
        if value is not None
    }
    return {"kind": error.kind, "message": str(error), **stated}


def silence(stream: TextIO) -> None:
    """Send what a stream still holds, and all that follows, nowhere: or Python complains about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _err(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    except OSError:  # the result and the exit code do not hang on it
        silence(sys.stderr)
