"""`paretune data inspect`: what is in the data, before anything is trained on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from paretune.cli.data.options import Format, Map, read_map
from paretune.cli.options import Json
from paretune.cli.output import emit, say, table
from paretune.cli.progress import bars

if TYPE_CHECKING:
    from paretune.data.inspect import FileReport, Overlap

_SHARES = ("min", "0.05", "0.25", "0.5", "0.75", "0.95", "max")


def inspect(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Files, folders or data sets; several are compared.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="Measure lengths in tokens of this model, not in words.")
    ] = None,
    near: Annotated[
        float,
        typer.Option("--near", min=0, max=1, help="Prompts of this likeness are near-duplicates; 0: do not look."),
    ] = 0.8,
    format: Format = None,
    map: Map = None,
    as_json: Json = False,
) -> None:
    """Show what data holds: prompts, lengths, scores, labels, duplicates, bad rows, overlap between files."""
    from paretune.data import inspect as run

    result = run(files, model=model, near=near, format=format, columns=read_map(map), progress=bars())

    def show() -> None:
        for at, file in enumerate(result.files):
            if at:
                say()
            _show_file(file)
        for overlap in result.overlaps:
            say()
            _show_overlap(overlap)

    emit(result, as_json, show)


def _show_file(file: FileReport) -> None:
    say(f"{file.path}: {_counts(file.formats)}")
    say(f"  {file.rows:,} rows, {file.prompts:,} prompts, {file.completions:,} completions")
    if file.bad:
        say(f"  {file.bad:,} bad rows")
        for cause, count in file.bad_reasons.items():
            say(f"    {count:,}: {cause}")
    if file.system_prompts:
        say(f"  {file.system_prompts:,} rows with a system prompt, {file.distinct_system_prompts:,} different ones")
    spreads = {
        "completions a prompt": file.completions_per_prompt,
        "turns": file.turns,
        f"prompt, {file.length_unit}": file.prompt_length,
        f"completion, {file.length_unit}": file.completion_length,
    }
    _table(["", "min", "5%", "25%", "median", "75%", "95%", "max"], [_spread(*item) for item in spreads.items()])
    scores = [[name, each.n, each.missing, each.mean, each.low, each.high] for name, each in file.scores.items()]
    _table(["score", "n", "missing", "mean", "min", "max"], scores)
    for title, counts in {"labels": file.labels, "preferences": file.preferences, "wanted": file.wanted}.items():
        if counts:
            say(f"  {title}: {_counts(counts)}")
    if file.other_columns:
        say(f"  other columns, kept: {', '.join(file.other_columns)}")
    _show_repeats(file)


def _show_repeats(file: FileReport) -> None:
    noted = {
        "rows without completions": file.rows_without_completions if file.completions else 0,
        "empty completions": file.empty_completions,
        "rows whose prompt an earlier row has": file.repeated_prompts,
        "completions that their prompt has twice": file.repeated_completions,
        "completions that another prompt has too": file.common_answers,
    }
    for title, count in noted.items():
        if count:
            say(f"  {count:,} {title}")
    if file.near_groups:
        say(f"  {file.near_prompts:,} prompts in {file.near_groups:,} groups of near-duplicates, such as")
        for one, other in file.near_examples:
            say(f"    {one}")
            say(f"    {other}")
    if file.near_groups is not None and file.near_compared < file.prompts:
        say(f"  near-duplicates were looked for among the first {file.near_compared:,} prompts")


def _show_overlap(overlap: Overlap) -> None:
    say(f"{overlap.second} shares with {overlap.first}: {overlap.exact:,} prompts")
    if overlap.near:
        say(f"  and {overlap.near:,} that are nearly the same")
    for text in overlap.examples:
        say(f"    {text}")


def _table(header: list[str], rows: Sequence[Sequence[object]]) -> None:
    kept = [row for row in rows if any(cell is not None for cell in row[1:])]
    for line in table(kept, header=header) if kept else ():
        say(f"  {line}")


def _spread(title: str, values: Mapping[str, float]) -> list[object]:
    numbers = [values.get(share) for share in _SHARES]
    return [title, *(int(each) if each is not None and each == int(each) else each for each in numbers)]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(inspect)
