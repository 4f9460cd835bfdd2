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
    weights: Annotated[
        list[str] | None,
        typer.Option(
            "--weights",
            metavar="grid|NAME=W,...",
            help="Answer under preference weights too: a grid over all of them, or these. Repeatable.",
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="NAME=VALUE,...|FILE",
            help="Answer under this profile too, or those of a .json file. Repeatable.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="NAME=VALUE,...",
            help="The hypervolume's reference point on the normalised scale. Default: 0 in every objective.",
        ),
    ] = None,
    judge_with: Annotated[
        list[str] | None,
        typer.Option(
            "--judge-with",
            metavar="NAME=SPEC",
            help="Judge objective NAME by a reward that training did not use, too; -NAME=SPEC if less is better. "
            "Repeatable.",
        ),
    ] = None,
    with_base: Annotated[bool, typer.Option("--with-base", help="Compare with the base model, too.")] = False,
    card: Annotated[
        bool, typer.Option("--card", help="Write the figures into the README.md of each policy folder, too.")
    ] = False,
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
    and says in words whether sensing helps. Several policies are compared with each other and with the data's chosen
    answers, over preference weights and profiles where they take them. A run that was ended goes on from the answers it
    had when the same command is given again.
    """
    from paretune.cli.inputs import read_reference
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
        weights=weights or None,
        profiles=profile or None,
        reference=read_reference(reference),  # type: ignore[arg-type]  # numbers without names are refused there
        judge_with=judge_with or None,
        include_base=with_base,
        card=card,
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
        for line in [each["claim"] for each in found.get("held_out") or ()] + found.get("notes", []):
            say(f"  {line}")
    if metrics.get("comparison"):
        _show_comparison(metrics)
    if metrics.get("kept_answers"):
        say(f"{metrics['kept_answers']:,} answers were kept from the run that was ended before")
    say(f"report: {out / 'report.html'}")


def _show_comparison(metrics: dict[str, Any]) -> None:
    """The table of methods, who is first in what, and the differences shown."""
    from paretune.evaluation.claims import shown_and_not
    from paretune.evaluation.output import HEADER, methods_table

    compared = metrics["comparison"]
    say()
    say(f"Compared on {compared['prompts']} common prompts, by {', '.join(compared['objectives'])}")
    for line in table(methods_table(metrics), header=HEADER):
        say(f"  {line}")
    for line in (*compared["claims"], *shown_and_not(compared["tests"]), *compared["notes"]):
        say(f"  {line}")


def _line(condition: str, numbers: dict[str, Any], scored: list[str]) -> list[object]:
    means = [numbers["scores"][name]["value"] for name in scored]
    return [condition, numbers["distance"]["value"], *means, numbers["words"]["value"]]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(evaluate)
