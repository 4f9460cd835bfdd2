"""`paretune runs`: the runs below a folder, with state, settings and metrics."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretune.cli.options import Json
from paretune.cli.output import complain, emit, say, table

if TYPE_CHECKING:
    from paretune.tracking.described import Run

HEADER = ("run", "method", "state", "step", "when", "MiB", "measured", "settings that differ")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to look; folders below it too.")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """List policies, reward models and unfinished trainings below a folder.

    A run is training, interrupted (the same command goes on from its checkpoint), done, evaluated (a report below the
    folder is about it) or broken.
    """
    from paretune.tracking import find_runs
    from paretune.tracking.runs import key_metrics

    found = find_runs(folder)

    def line(run: Run) -> list[Any]:
        when = datetime.fromtimestamp(run.when).strftime("%Y-%m-%d %H:%M") if run.when else "-"
        told = [pairs(key_metrics(run)), pairs(found.differing(run))]
        method = run.method or "-"
        return [str(run.folder), method, run.state, steps(run), when, f"{run.bytes / 2**20:.1f}", *told]

    def show() -> None:
        if not found.runs:
            say(f"no runs below {folder}")
        else:
            for text in table(map(line, found.runs), header=HEADER):
                say(text)
        for problem in found.problems:
            complain(problem, word="cannot be read: ")
        if not found.complete:
            complain(f"{folder} is too deep or too large to be searched whole; name a folder below it", word="")

    emit(found, as_json, show)


def steps(run: Run) -> str:
    """How far a run is: `17/17`, `1/2 rounds`; `?` where nobody has written it down."""
    if run.step is None:
        return "-"
    of = run.steps if run.steps is not None else "?"
    return f"{run.step}/{of}{' rounds' if run.kind == 'improve' else ''}"


def pairs(values: dict[str, Any]) -> str:
    """Names with values, in a line."""
    told = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return ", ".join(f"{name} {text}" for name, text in told.items())


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(runs)
