"""`paretune score`: measure the completions of rows by objectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretune.cli.options import Json, Overwrite, SkipBadRows
from paretune.cli.output import complain, emit, say, table
from paretune.cli.progress import bars

if TYPE_CHECKING:
    from paretune.rewards import ObjectiveSummary, ScoreSummary


def score(
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="Rows with completions.")],
    objective: Annotated[
        list[str],
        typer.Option(
            "--objective",
            metavar="NAME=SPEC",
            help="What to measure and by what; -NAME=SPEC is minimised, *=hf:MODEL#* stands for every output of a "
            "model. Repeatable. See `paretune objectives`.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the scored rows go (.jsonl, .jsonl.gz or .parquet).")],
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that score; each loads the models and has one GPU.")
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Score on this Ray cluster, by as many actors as --workers says (`auto`: the one that runs here, "
            "`local`: one of its own).",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Completions that a reward is given at a time.")
    ] = 256,
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", min=1, help="Completions between two saves; what a kill can cost.")
    ] = 512,
    allow_remote_code: Annotated[
        bool, typer.Option("--allow-remote-code", help="Let hf: and embed: models run code of their repository.")
    ] = False,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure completions by objectives.

    Scores are added to the rows as they are measured. The objectives are stored in a small JSON file beside the rows,
    where `train` finds them. An interrupted run goes on where it stopped.
    """
    from paretune.rewards import score as run

    summary = run(
        rows,
        objective,
        out,
        skip_bad_rows=skip_bad_rows,
        overwrite=overwrite,
        batch_size=batch_size,
        chunk_size=chunk_size,
        workers=workers,
        ray=ray,
        allow_remote_code=allow_remote_code,
        progress=bars(),
        note=lambda text: complain(text, word=""),
    )
    emit(summary, as_json, lambda: _show(summary))


def _show(summary: ScoreSummary) -> None:
    say(f"{summary.out}: {summary.completions:,} completions of {summary.rows:,} rows scored")
    header = ["objective", "spec", "n", "missing", "mean", "std", "5%", "median", "95%", "with length"]
    for line in table([_line(item) for item in summary.objectives], header=header):
        say(line)
    if len(summary.correlations) > 1:
        say()
        for line in _matrix(summary):
            say(line)
        say()
    for item in summary.objectives:
        if item.disagreement is not None:
            say(f"{item.name}: members disagree by {item.disagreement:.3f} on average")
    for name, counts in summary.counts.items():
        say(f"{name}: " + ", ".join(f"{number:,.6g} {word}" for word, number in counts.items()))
    for cause, count in summary.bad_reasons.items():
        say(f"dropped {count:,} bad rows: {cause}")
    for warning in summary.warnings:
        say(f"warning: {warning}")


def _line(item: ObjectiveSummary) -> list[object]:
    sign = "-" if item.direction == "minimise" else ""
    spread = [item.quantiles.get(share) for share in ("0.05", "0.5", "0.95")]
    numbers = [item.n, item.missing, item.mean, item.std, *spread, item.length_correlation]
    return [sign + item.name, item.spec, *numbers]


def _matrix(summary: ScoreSummary) -> list[str]:
    """The lower half of the correlations."""
    names = list(summary.correlations)
    rows: list[list[object]] = []
    for at, one in enumerate(names[1:], start=1):
        values = [summary.correlations[one][other] for other in names[:at]]
        cells = ["-" if value is None else f"{value:+.2f}" for value in values]
        rows.append([one, *cells, *[""] * (len(names) - 1 - at)])
    return table(rows, header=["rank correlation", *names[:-1]])


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(score)
