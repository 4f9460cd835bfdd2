"""`paretune score`: measure the completions of rows by objectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretune.cli.options import Json, Overwrite, SkipBadRows
from paretune.cli.output import emit, say, table
from paretune.cli.progress import bars

if TYPE_CHECKING:
    from paretune.rewards import ObjectiveSummary


def score(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Rows with completions.")],
    objective: Annotated[
        list[str],
        typer.Option(
            "--objective",
            metavar="NAME=SPEC",
            help="What to measure and by what; -NAME=SPEC is minimised. Repeatable. See `paretune objectives`.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the scored rows go (.jsonl or .jsonl.gz).")],
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure completions by objectives.

    Scores are added to the rows as they are measured. The objectives are stored in a small JSON file beside the rows,
    where `train` finds them.
    """
    from paretune.rewards import score as run

    summary = run(rows, objective, out, skip_bad_rows=skip_bad_rows, overwrite=overwrite, progress=bars())

    def show() -> None:
        say(f"{out}: {summary.completions:,} completions of {summary.rows:,} rows scored")
        header = ["objective", "spec", "n", "missing", "mean", "std", "5%", "median", "95%", "with length"]
        for line in table([_line(item) for item in summary.objectives], header=header):
            say(line)
        for cause, count in summary.bad_reasons.items():
            say(f"dropped {count:,} bad rows: {cause}")
        for warning in summary.warnings:
            say(f"warning: {warning}")

    emit(summary, as_json, show)


def _line(item: ObjectiveSummary) -> list[object]:
    sign = "-" if item.direction == "minimise" else ""
    spread = [item.quantiles.get(share) for share in ("0.05", "0.5", "0.95")]
    numbers = [item.n, item.missing, item.mean, item.std, *spread, item.length_correlation]
    return [sign + item.name, item.spec, *numbers]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(score)
