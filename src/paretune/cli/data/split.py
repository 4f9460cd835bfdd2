"""`paretune data split`: training, validation and test rows in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.options import Json, Overwrite, Seed, SkipBadRows
from paretune.cli.output import emit, say, table


def split(
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="A file, a folder or a Hugging Face data set id.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for train.jsonl, validation.jsonl and test.jsonl.")],
    validation: Annotated[float, typer.Option("--validation", help="Share of the prompts for validation.")] = 0.1,
    test: Annotated[float, typer.Option("--test", help="Share of the prompts for the test.")] = 0.1,
    near: Annotated[
        float,
        typer.Option(
            "--near", help="Prompts that overlap by this much (Jaccard index of shingles) stay together; 0: equal ones."
        ),
    ] = 0.8,
    seed: Seed = 0,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Split rows by prompt, near-duplicates together.

    The same prompts fall into the same parts whatever their order. `train` and `evaluate` do this by themselves; files
    of their own are for other tools.
    """
    from paretune.data.exports import write_split

    result = write_split(
        rows,
        out,
        seed=seed,
        validation=validation,
        test=test,
        near_duplicates=near,
        skip_bad_rows=skip_bad_rows,
        overwrite=overwrite,
    )

    def show() -> None:
        lines = [(str(out / f"{name}.jsonl"), count, result.prompts[name]) for name, count in result.rows.items()]
        for line in table(lines, header=["file", "rows", "prompts"]):
            say(line)
        if result.joined:
            say(f"{result.joined:,} prompts went with a near-duplicate")
        if result.bad_rows:
            say(f"dropped {result.bad_rows:,} bad rows")

    emit(result, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(split)
