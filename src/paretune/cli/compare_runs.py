"""`paretune compare`: what differs between runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretune.cli.options import Json
from paretune.cli.output import emit, say, table

if TYPE_CHECKING:
    from paretune.tracking.compare import Comparison, Row

WIDEST = 48
"""Characters of a value in the table; the end of a longer one tells more than its beginning."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Folders that `paretune runs` lists.")],
    everything: Annotated[bool, typer.Option("--all", help="Show what is equal, too.")] = False,
    as_json: Json = False,
) -> None:
    """Show what differs between runs: method, base, data, settings, versions, and what was measured."""
    from paretune.tracking import compare_runs

    result = compare_runs(runs, everything=everything)

    def show() -> None:
        for line in lines(result):
            say(line)

    emit(result, as_json, show)


def lines(result: Comparison) -> list[str]:
    """The comparison as a table; between two runs numbers have their difference."""
    two = len(result.runs) == 2
    header = ["", *(_short(str(run.folder)) for run in result.runs), *(["difference"] if two else [])]
    rows = [_line(row, two) for row in result.rows]
    out = table(rows, header=header) if rows else ["nothing that the runs say of themselves differs"]
    if result.equal and not any(row.equal for row in result.rows):
        out.append(f"{result.equal} more are equal; --all shows them")
    return out


def _line(row: Row, two: bool) -> list[str]:
    cells = [f"{row.section}: {row.name}" if row.name != row.section else row.name, *map(_told, row.values)]
    if two:
        difference = row.differences[1]
        cells.append("" if difference is None or row.equal else f"{difference:+.6g}")
    return cells


def _told(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else _short(str(value))


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"...{text[3 - WIDEST :]}"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(compare)
