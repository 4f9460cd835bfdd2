"""`paretune evaluate`: does sensing help, does control work, and where are the policies on the front?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paretune.cli.options import Json, Overwrite, Seed
from paretune.cli.output import emit, say, table
from paretune.cli.progress import bars


def evaluate(
    policies: Annotated[list[Path], typer.Argument(metavar="POLICY", help="Folders that `paretune train` wrote.")],
    data: Annotated[
        str,
        typer.Option("--data", help="Scored rows: the file of training, of which the unseen part is used, or another."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for metrics.json, report.html and front.png.")],
    condition: Annotated[
        list[str] | None,
        typer.Option("--condition", metavar="NAME", help="Only these conditions. Repeatable. Default: all."),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="NAME[=SPEC]",
            help="Only this objective of the policy, measured by SPEC if one is given. Repeatable.",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option("--split", help="Part of the training file to use: test, validation or all.")
    ] = "test",
    max_prompts: Annotated[
        int | None, typer.Option("--max-prompts", min=2, help="Use at most this many prompts.")
    ] = None,
    control_prompts: Annotated[
        int, typer.Option("--control-prompts", min=0, help="Prompts of the sweeps over requested values; 0: none.")
    ] = 16,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", min=1, help="Longest answer.")] = None,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=1, help="Resamples behind each interval.")] = 1000,
    allow_overlap: Annotated[
        bool,
        typer.Option("--allow-overlap", help="Leave out rows whose prompts were trained on, instead of refusing them."),
    ] = False,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Measure policies under all conditions.

    Compares answers guided by the true, the sensed, a shuffled, the mean, an all-ones and no profile, with intervals,
    and says in words whether sensing helps.
    """
    from paretune.evaluation import evaluate as run

    metrics = run(
        policies,
        data,
        out,
        conditions=condition or None,
        objectives=objective or None,
        max_prompts=max_prompts,
        max_new_tokens=max_new_tokens,
        seed=seed,
        overwrite=overwrite,
        progress=bars(),
        split=split,
        bootstrap=bootstrap,
        control_prompts=control_prompts,
        allow_overlap=allow_overlap,
    )
    emit(metrics, as_json, lambda: _show(metrics, out))


def _show(metrics: dict[str, Any], out: Path) -> None:
    for name, found in metrics["policies"].items():
        verdict = found["verdict"]
        say(f"{name} ({found['method']}): {verdict['headline']}")
        say(f"  {verdict['text']}")
        for limit in verdict["limits"]:
            say(f"  {limit}")
        header = ["condition", "distance to target", *found["scored"], "words"]
        for line in table(
            [_line(condition, numbers, found["scored"]) for condition, numbers in found["conditions"].items()],
            header=header,
        ):
            say(f"  {line}")
    say(f"report: {out / 'report.html'}")


def _line(condition: str, numbers: dict[str, Any], scored: list[str]) -> list[object]:
    means = [numbers["scores"][name]["value"] for name in scored]
    return [condition, numbers["distance"]["value"], *means, numbers["words"]["value"]]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(evaluate)
