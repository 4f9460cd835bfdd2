"""`paretune improve`: a policy trained on with its own best answers, in online rounds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.options import (
    BatchSize,
    Force,
    Json,
    MaxNewTokens,
    Overwrite,
    PolicyFolder,
    ReportTo,
    Seed,
    SkipBadRows,
    TopP,
)
from paretune.cli.output import complain, emit, say
from paretune.cli.progress import bars


def improve(
    policy: PolicyFolder,
    data: Annotated[str, typer.Option("--data", help="The scored rows that the policy was trained on.")],
    out: Annotated[Path, typer.Option("--out", help="Where the new policy folder goes.")],
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="At most so many rounds.")] = 2,
    n: Annotated[int, typer.Option("-n", min=4, help="Samples a prompt.")] = 4,
    prompts_per_round: Annotated[
        int | None,
        typer.Option(
            "--prompts-per-round", min=1, help="Training prompts sampled in a round, drawn anew. Default: all."
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="pareto|ric",
            help="What a round trains on: what no other completion of the prompt dominates, or samples at or above the "
            "0.7 quantile in any reward.",
        ),
    ] = "pareto",
    originals: Annotated[
        float, typer.Option("--originals", help="Share of a round's rows that are the data's own, in [0, 1).")
    ] = 0.5,
    delta: Annotated[
        float, typer.Option("--delta", help="By how much one objective is asked above what is sensed.")
    ] = 0.2,
    patience: Annotated[
        int, typer.Option("--patience", min=1, help="So many rounds in a row without a gain end them.")
    ] = 1,
    validation_prompts: Annotated[
        int, typer.Option("--validation-prompts", min=1, help="Validation prompts that decide over a round, at most.")
    ] = 128,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A training setting other than the policy's own, such as epochs. Repeatable.",
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the samples, above 0.")] = 0.8,
    top_p: TopP = 0.95,
    seed: Seed = 0,
    batch_size: BatchSize = 32,
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard what an interrupted run left, and begin anew.")
    ] = False,
    force: Force = False,
    report_to: ReportTo = None,
    as_json: Json = False,
) -> None:
    """Train a policy on in online rounds.

    Each round samples answers over the front, scores them by the policy's own rewards, and trains on with the best; it
    is kept only if the hypervolume of the validation front rose. An interrupted run goes on where it stopped when the
    same command is given again.
    """
    from paretune.methods.improve import improve as run

    result = run(
        policy,
        data,
        out,
        rounds=rounds,
        n=n,
        prompts_per_round=prompts_per_round,
        keep=keep,  # type: ignore[arg-type]  # another word is refused there
        originals=originals,
        delta=delta,
        patience=patience,
        validation_prompts=validation_prompts,
        settings=tuple(settings or ()),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
        skip_bad_rows=skip_bad_rows,
        overwrite=overwrite,
        restart=restart,
        force=force,
        report_to=tuple(report_to or ()),
        progress=bars(),
        note=lambda text: complain(text, word=""),
    )

    def show() -> None:
        for name, why in result.masked.items():
            say(f"objective '{name}' took no part: {why}")
        say(f"{result.folder}: {result.sentence}")
        say(f"ended after {len(result.rounds)} of {rounds} rounds: {result.stopped}")
        words = ["paretune", "evaluate", str(policy), str(result.folder), "--data", data, "--out", "report"]
        say(f"next: {shlex.join(words)}")

    emit(result, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(improve)
