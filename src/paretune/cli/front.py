"""`paretune front`: the front and the hypervolume of any table of points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.inputs import check_target_file, read_reference
from paretune.cli.options import Json, Overwrite
from paretune.cli.output import emit, say, table


def front(
    points: Annotated[Path, typer.Argument(metavar="POINTS", help="A table: .csv, .tsv or .jsonl, also .gz.")],
    maximise: Annotated[str, typer.Option("--maximise", metavar="A,B", help="Columns where more is better.")] = "",
    minimise: Annotated[str, typer.Option("--minimise", metavar="C", help="Columns where less is better.")] = "",
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="A=0,B=0,C=1",
            help="The corner from which hypervolume is measured, by name or as numbers in the order of the columns "
            "(maximised first). Default: a little worse than the worst point; it is always printed.",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the points here.")] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="What names a point in the plot.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Print the front of a table of points.

    The front is the points that no other dominates; with it comes the hypervolume they hold.
    """
    from paretune.pareto import front as run

    check_target_file(plot, overwrite=overwrite)
    result = run(points, maximise=_names(maximise), minimise=_names(minimise), reference=read_reference(reference))
    if plot is not None:
        result.save_plot(plot, label=label)

    def show() -> None:
        corner = ", ".join(f"{name}={value:g}" for name, value in result.reference.items())
        say(f"hypervolume  {result.hypervolume:.6g}  (reference {corner}; {result.reference_rule})")
        say(f"front        {len(result.points)} of {len(result.rows)} points")
        header = list(result.points[0])
        for line in table([[row.get(name) for name in header] for row in result.points], header=header):
            say(line)

    emit(result, as_json, show)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(front)
