"""The options that say how data is to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from paretune.errors import InputError

Format = Annotated[
    str | None,
    typer.Option("--format", metavar="NAME", help="Read as this format, instead of finding out by the columns."),
]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="TO=COLUMN",
        help="Which column is what, for any table: prompt=question, completion=answer, scores.helpful=rating, id=uid; "
        "also system, label, chosen, rejected, completions.0, wanted.NAME. Dots reach into nested columns. Repeatable.",
    ),
]


def read_map(items: Sequence[str] | None) -> dict[str, str] | None:
    """`TO=COLUMN` items as a map; nothing when there are none."""
    if not items:
        return None
    columns: dict[str, str] = {}
    for item in items:
        target, mark, column = item.partition("=")
        if not mark:
            raise InputError(f"--map is written TO=COLUMN, as in prompt=question; found '{item}'")
        if target.strip() in columns:
            raise InputError(f"--map sets '{target.strip()}' twice")
        columns[target.strip()] = column.strip()
    return columns
