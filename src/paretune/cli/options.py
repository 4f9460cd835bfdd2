"""The options that several verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that is there.")]
Restart = Annotated[
    bool, typer.Option("--restart", help="Discard the checkpoints of a training that was killed, and begin anew.")
]
Force = Annotated[bool, typer.Option("--force", help="Go on with what a run by other code or package versions left.")]
ReportTo = Annotated[
    list[str] | None,
    typer.Option(
        "--report-to",
        metavar="TRACKER",
        help="Pass every number on to mlflow, tensorboard, trackio or wandb, if installed; several with commas.",
    ),
]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Drop and count rows that cannot be read.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same result.")]

PolicyFolder = Annotated[Path, typer.Argument(metavar="POLICY", help="A folder that `paretune train` wrote.")]
Base = Annotated[
    str | None,
    typer.Option("--base", metavar="MODEL", help="Where the base model is, if not where it was in training."),
]
Prompt = Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="One prompt.")]
Prompts = Annotated[
    Path | None, typer.Option("--prompts", metavar="FILE", help="Many: rows with a `prompt`, or .txt, one a line.")
]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="NAME=VALUE", help="Fix an objective to a value in [0, 1]. Repeatable."),
]

Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="NAME=W,...",
        help="In place of a condition: how much each objective counts (0 or more, summing to 1).",
    ),
]

MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer, in tokens.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens that hold this share, in (0, 1].")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Answers written at a time; memory grows with it.")]
