"""`paretune train`: a policy from scored rows."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.options import Force, Json, Overwrite, ReportTo, Restart, SkipBadRows
from paretune.cli.output import complain, emit, say, table
from paretune.cli.progress import bars


def train(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="See `paretune methods`.")],
    data: Annotated[str, typer.Option("--data", help="Scored rows: a file, a folder or a Hugging Face data set id.")],
    out: Annotated[Path, typer.Option("--out", help="Where the policy folder goes.")],
    model: Annotated[str | None, typer.Option("--model", help="The base model: a folder or a Hugging Face id.")] = None,
    start: Annotated[
        Path | None,
        typer.Option("--start", help="A policy by the same method whose training goes on, in place of --model."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file of settings.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting; goes before the file's. Repeatable."),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option("--objective", metavar="NAME", help="Use only these objectives of the data. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The same seed gives the same policy.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A prompt longer than the context is an error, not dropped and counted.")
    ] = False,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    restart: Restart = False,
    force: Force = False,
    report_to: ReportTo = None,
    as_json: Json = False,
) -> None:
    """Train a policy and save it as one folder.

    The folder holds adapter, sensing head, objectives and tokenizer, and every number logged on the way (train.jsonl).
    A training that was killed goes on from its last checkpoint when the same command is given again.
    """
    from paretune.methods import train as run

    result = run(
        method,
        data,
        model,
        out,
        start=start,
        config=config,
        settings=tuple(settings or ()),
        objectives=tuple(objective or ()),
        overwrite=overwrite,
        restart=restart,
        force=force,
        report_to=tuple(report_to or ()),
        skip_bad_rows=skip_bad_rows,
        strict=strict,
        seed=seed,
        progress=bars(),
        note=lambda text: complain(text, word=""),
    )

    def show() -> None:
        minutes = f"{result.seconds / 60:.1f} minutes"
        over = f" over {result.pairs:,} pairs" if result.pairs else ""  # a method that samples its answers has none
        say(f"{result.folder}: {result.method}, {result.steps:,} steps{over}, {minutes}")
        parts = [("train_prompts", "trained on"), ("validation_prompts", "validated"), ("test_rows", "held out")]
        sizes = [f"{result.metrics[key]:,} {word}" for key, word in parts if key in result.metrics]
        if sizes:
            say("prompts: " + ", ".join(sizes))
        if result.metrics.get("near_duplicates"):
            say(f"{result.metrics['near_duplicates']:,} prompts stay in one part with a near-duplicate")
        told = {"near_duplicates", "rows", "pairs", "steps", "seconds", *(key for key, _ in parts)}
        for line in table(sorted(item for item in result.metrics.items() if item[0] not in told)):
            say(f"  {line}")
        dropped = {cause: count for cause, count in result.dropped.items() if count}
        if dropped:
            say("dropped: " + ", ".join(f"{count:,} {cause}" for cause, count in dropped.items()))
        senses = any(name.startswith("sense_") or name == "sense" for name in result.metrics)
        say(f'next: paretune {"sense" if senses else "generate"} {shlex.quote(result.folder)} --prompt "..."')

    emit(result, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(train)
