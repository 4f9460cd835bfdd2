"""What an adapter is, and what all of them read cells with.

An adapter turns one published record into an object of the row contract (`formats`), which is then checked like any
other row. Cells may be text where the source has no types (CSV), so numbers and flags are read from text too. Every
check raises `BadRow` with the name of the published column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paretune.data.records import BadRow, show

Raw = Mapping[str, Any]
"""A published record: column -> value."""

MISSING = ("", "n/a", "na", "nan", "none", "null")
"""How tables write that there is no number, in lower case."""
RESERVED = ("text", "scores", "label")
"""Keys of a completion that have a meaning of their own."""


@dataclass(frozen=True)
class Adapter:
    """A format that can be read.

    `needs` says in words by which columns it is told; `fits` tells it from a record; `must` are the columns that every
    record of it has; `row` makes an object of the row contract of it. `merges`: a record is one answer, and records of
    the same prompt become one row. `minimise`: scores of which less is better. `refused`: the format is known but
    cannot be used, for this reason.
    """

    name: str
    about: str
    needs: str
    fits: Callable[[Raw], bool]
    must: tuple[str, ...] = ()
    row: Callable[[Raw], Raw] = lambda record: record
    merges: bool = False
    minimise: tuple[str, ...] = ()
    refused: str = ""


def has(record: Raw, *columns: str) -> bool:
    """Does the record have a value in each of the columns?"""
    return all(record.get(column) is not None for column in columns)


def text(record: Raw, column: str) -> str:
    """A cell that must be text."""
    value = record.get(column)
    if not isinstance(value, str):
        raise BadRow(f"'{column}' must be text", field=column, found=show(value))
    return value


def prompt_text(record: Raw, column: str) -> str:
    """A cell that must be text and not blank."""
    value = text(record, column)
    if not value.strip():
        raise BadRow("the prompt is empty", field=column)
    return value


def items(record: Raw, column: str) -> list[Any]:
    """A cell that must be a list."""
    value = record.get(column)
    if not isinstance(value, list):
        raise BadRow(f"'{column}' must be a list", field=column, found=show(value))
    return value


def number(value: Any, field: str) -> float | None:
    """A finite number, also from text ("4.5"); `None` for what is missing ("N/A", an empty cell)."""
    if value is None or (isinstance(value, str) and value.strip().lower() in MISSING):
        return None
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            parsed = float(value)
        except (ValueError, OverflowError):
            parsed = math.nan
        if math.isfinite(parsed):
            return parsed
    raise BadRow("a score must be a finite number or missing", field=field, found=show(value))


def flag(value: Any, field: str) -> bool | None:
    """True or false, also from text or 0 and 1; `None` for what is missing."""
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in MISSING:
        return None
    if word in ("true", "1", "1.0", "yes"):
        return True
    if word in ("false", "0", "0.0", "no"):
        return False
    raise BadRow("a flag must be true or false", field=field, found=show(value))


def rest(record: Raw, used: Iterable[str], reserved: Iterable[str] = RESERVED) -> dict[str, Any]:
    """The columns nobody has read, so that nothing is lost; one whose name means something else in a row is renamed."""
    used, reserved = set(used), set(reserved)
    kept = {name: value for name, value in record.items() if name not in used}
    return {f"source.{name}" if name in reserved else name: value for name, value in kept.items()}


def labelled(texts: tuple[str, str], chosen: int | None, extras: tuple[Raw, Raw] = ({}, {})) -> list[dict[str, Any]]:
    """Two answers, of which `chosen` (0, 1 or nobody) is the preferred one."""
    out: list[dict[str, Any]] = []
    for index, answer in enumerate(texts):
        label = {} if chosen is None else {"label": "chosen" if index == chosen else "rejected"}
        out.append({"text": answer, **label, **extras[index]})
    return out
