"""`paretune reward train`: a reward model from rows with preferences or ratings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretune.cli.options import Force, Json, Overwrite, ReportTo, Restart, SkipBadRows
from paretune.cli.output import complain, emit, say, table
from paretune.cli.progress import bars

if TYPE_CHECKING:
    from paretune.reward_model import RewardTrainResult


def train(
    data: Annotated[str, typer.Option("--data", help="Rows with pairs or scores: a file, a folder or a data set id.")],
    model: Annotated[str, typer.Option("--model", help="The base model: a folder or a Hugging Face id.")],
    out: Annotated[Path, typer.Option("--out", help="Where the folder of the reward model goes.")],
    objectives: Annotated[
        str,
        typer.Option(
            "--objectives", metavar="A,B", help="What it measures; -NAME is minimised. Default: all that the rows hold."
        ),
    ] = "",
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="pairs|ratings|both", help="What it learns from. Default: whatever is there."),
    ] = None,
    preference: Annotated[
        str | None,
        typer.Option(
            "--preference",
            metavar="NAME",
            help="The objective that the labels chosen and rejected are about. Default: preference.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="YAML file of settings.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting; goes before the file's. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The same seed gives the same model.")] = None,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    restart: Restart = False,
    force: Force = False,
    report_to: ReportTo = None,
    as_json: Json = False,
) -> None:
    """Train a reward model and save it as one folder.

    It has one output an objective, learnt from preferences (labels, `preferences`), from ratings (`scores`) or from
    both, and is measured on held-out prompts. `score` uses it as NAME=trained:FOLDER#objective.
    """
    from paretune.reward_model import train_reward_model

    result = train_reward_model(
        data,
        model,
        out,
        objectives=[name.strip() for name in objectives.split(",") if name.strip()],
        source=source,
        preference=preference,
        config=config,
        settings=tuple(settings or ()),
        overwrite=overwrite,
        restart=restart,
        force=force,
        report_to=tuple(report_to or ()),
        skip_bad_rows=skip_bad_rows,
        seed=seed,
        progress=bars(),
        note=lambda text: complain(text, word=""),
    )
    emit(result, as_json, lambda: _show(result))


def _show(result: RewardTrainResult) -> None:
    from paretune.reward_model.card import figures

    prompts = f"{result.metrics['train_prompts']:,} prompts"
    say(f"{result.folder}: {result.steps:,} steps over {prompts}, {result.seconds / 60:.1f} minutes")
    counts = [[name, *found.values()] for name, found in result.supervision.items()]
    for line in table(counts, header=["trained on", "pairs", "ratings", "prompts without"]):
        say(line)
    if result.validation:
        header, lines = figures(result.validation)
        say()
        for line in table(
            lines, header=[f"{header[0]} ({result.metrics['validation_prompts']:,} prompts)", *header[1:]]
        ):
            say(line)
    if result.dropped:
        say("dropped: " + ", ".join(f"{count:,} {cause.replace('_', ' ')}" for cause, count in result.dropped.items()))
    spec = f"trained:{result.folder}" + (f"#{result.objectives[0]}" if len(result.objectives) > 1 else "")
    say(f"next: paretune score ROWS --objective {shlex.quote(f'{result.objectives[0]}={spec}')} --out scored.jsonl")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(train)
