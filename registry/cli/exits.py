"""The one place that maps errors to exit codes. The codes are documented in the README and do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.core import errors

if TYPE_CHECKING:
    from registry.core.comparison import Comparison

DONE = 0
DAMAGED = 5
OUTPUT_CLOSED = 141

_CODES: tuple[tuple[type[errors.RegistryError], int], ...] = (
    (errors.Refused, 2),
    (errors.InvalidReference, 2),
    (errors.NotFound, 3),
    (errors.Ambiguous, 4),
    (errors.IntegrityError, DAMAGED),
    (errors.Conflict, 6),
    (errors.StorageError, 7),
)


def code_of(error: errors.RegistryError) -> int:
    """The exit code of an error."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def code_of_comparison(comparison: Comparison) -> int:
    """The exit code of a comparison: a failed one is a failure of integrity."""
    return DONE if comparison.passed else DAMAGED
