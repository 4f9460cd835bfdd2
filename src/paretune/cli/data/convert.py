"""`paretune data convert` and `paretune data formats`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.data.options import Format, Map, read_map
from paretune.cli.options import Json, Overwrite, SkipBadRows
from paretune.cli.output import emit, say, table
from paretune.cli.progress import bars


def convert(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="Files, folders or data sets of the hub (org/name:split).")
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the rows go (.jsonl, .jsonl.gz or .parquet).")],
    format: Format = None,
    map: Map = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Write at most this many rows.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Draw the rows of --limit at random, instead of the first.")
    ] = None,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn data of any known format into rows.

    Answers to the same prompt are joined into one row, also over several sources. See `paretune data formats` for what
    can be read.
    """
    from paretune.data import convert as run

    result = run(
        sources,
        out,
        format=format,
        columns=read_map(map),
        limit=limit,
        seed=seed,
        skip_bad_rows=skip_bad_rows,
        overwrite=overwrite,
        progress=bars(),
    )

    def show() -> None:
        kinds = ", ".join(result.formats)
        say(f"{out}: {result.records:,} records read ({kinds}), {result.rows:,} rows written")
        scores = f", scored for {', '.join(result.scores)}" if result.scores else ""
        say(f"{result.completions:,} completions{scores}")
        for cause, count in result.dropped.items():
            say(f"dropped {count:,} bad rows: {cause}")

    emit(result, as_json, show)


def formats(as_json: Json = False) -> None:
    """List the formats that can be read, with the columns that tell them."""
    from paretune.data.adapters import list_formats

    found = [{"name": name, "about": about, "columns": needs} for name, about, needs in list_formats()]

    def show() -> None:
        for line in table([list(each.values()) for each in found], header=["format", "what it is", "columns"]):
            say(line)

    emit(found, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(convert)
    app.command()(formats)
