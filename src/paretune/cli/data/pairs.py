"""`paretune data pairs`: preference pairs from scored rows, for any trainer that reads TRL's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.options import Json, Overwrite, Seed, SkipBadRows
from paretune.cli.output import emit, say
from paretune.errors import InputError


def pairs(
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="Scored rows: a file, a folder or a data set id.")],
    out: Annotated[Path, typer.Option("--out", help="Where the pairs go (.jsonl or .jsonl.gz).")],
    rule: Annotated[
        str, typer.Option("--rule", help="What decides without labels: mean, weights, pareto or best-random.")
    ] = "mean",
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="NAME=W,...", help="Weights of the objectives, for --rule weights."),
    ] = None,
    margin: Annotated[float, typer.Option("--margin", help="Drop pairs that differ by less in what decides.")] = 0.0,
    per_prompt: Annotated[
        int | None,
        typer.Option("--per-prompt", min=1, help="Up to so many pairs a prompt. Default: one a row."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option("--scale", help="How scores come to [0, 1]: quantile, minmax, zscore, sigmoid or fixed."),
    ] = "quantile",
    objective: Annotated[
        list[str] | None, typer.Option("--objective", metavar="NAME", help="Use only these objectives. Repeatable.")
    ] = None,
    ignore_labels: Annotated[
        bool, typer.Option("--ignore-labels", help="Decide by scores also where rows say chosen and rejected.")
    ] = False,
    ignore_wanted: Annotated[
        bool, typer.Option("--ignore-wanted", help="Decide by the rule also where rows hold a wanted profile.")
    ] = False,
    seed: Seed = 0,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Build preference pairs of scored rows.

    Labels decide where rows have them, then a wanted profile, then the rule. What is dropped is counted.
    """
    from paretune.data.exports import write_pairs

    report = write_pairs(
        rows,
        out,
        rule=rule,
        weights=read_weights(weights),
        margin=margin,
        per_prompt=per_prompt,
        labels=not ignore_labels,
        wanted=not ignore_wanted,
        scale=scale,
        objectives=objective or (),
        seed=seed,
        skip_bad_rows=skip_bad_rows,
        overwrite=overwrite,
    )
    found = {"out": str(out), "rows": report.rows, "pairs": report.pairs}
    found |= {"built": report.built(), "dropped": report.dropped(), "missing_scores": report.missing}
    emit(found, as_json, lambda: say(f"{out}: {report.describe()}"))


def read_weights(text: str | None) -> dict[str, float] | None:
    """`a=2,b=1` as weights by name; nothing when there are none."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"weights are written a=2,b=1, found '{text}'") from None
        if name.strip() in found:
            raise InputError(f"--weights sets '{name.strip()}' twice")
        found[name.strip()] = number
    return found


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(pairs)
