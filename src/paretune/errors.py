"""The one error a user can cause, and how it is told.

Everything a user can get wrong raises `InputError` (a `ValueError`) whose text says where, what was found and what to
do. The CLI prints that text and exits 2; a traceback is always our own fault.
"""

from __future__ import annotations

import difflib
import numbers
import sys
from collections.abc import Iterable
from pathlib import Path

_LARGEST = sys.float_info.max  # a whole number may be larger than any float


class InputError(ValueError):
    """Bad input: names file, line and field where they are known."""

    def __init__(
        self, message: str, *, file: Path | str | None = None, line: int | None = None, field: str | None = None
    ) -> None:
        self.file, self.line, self.field, self.message = file, line, field, message
        where = [str(file) if file is not None else "", f"line {line}" if line is not None else ""]
        where.append(f"field '{field}'" if field is not None else "")
        place = ", ".join(part for part in where if part)
        super().__init__(f"{place}: {message}" if place else message)


def check_whole(value: object, name: str, *, least: int = 0) -> None:
    """`InputError` unless `value` is a whole number of at least `least` (True and False are none)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number, found {value!r:.100}")
    if value < least:
        raise InputError(f"{name} must be at least {least}, found {value}")


def check_number(value: object, name: str) -> None:
    """`InputError` unless `value` is a finite number (True and False are none)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not abs(value) <= _LARGEST:  # type: ignore[operator]
        raise InputError(f"{name} must be a finite number, found {value!r:.100}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A tail for "unknown X" errors: the nearest known name if there is one, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{hint} Known: {', '.join(names)}."
