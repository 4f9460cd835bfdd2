"""A raw record of a source, and why one cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class BadRow(Exception):
    """Why a row cannot be used: the field, the cause (the same text for all rows of that kind) and what was found."""

    def __init__(self, cause: str, *, field: str | None = None, found: str = "") -> None:
        self.cause, self.field, self.found = cause, field, found
        super().__init__(f"{cause}; found {found}" if found else cause)


@dataclass(frozen=True)
class Record:
    """One raw row, or the `BadRow` that stands in its place, and where it stands.

    `columns`: all columns of the table it is from, where the source has any. `typed`: False where all cells are text.
    """

    file: str
    line: int
    value: Any
    columns: tuple[str, ...] = ()
    typed: bool = True


def show(value: Any, limit: int = 60) -> str:
    """A value as shown in an error: short, and safe to print whatever it holds."""
    text = ascii(value) if isinstance(value, str) else repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."
