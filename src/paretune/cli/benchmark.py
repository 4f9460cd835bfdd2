"""`paretune benchmark`: did alignment cost general ability? Tasks of lm-eval on a policy and on its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paretune.cli.options import Base, Json, Overwrite, Pins, PolicyFolder, Seed, Weights
from paretune.cli.output import emit, say, table
from paretune.cli.progress import bars


def benchmark(
    policy: PolicyFolder,
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="NAME,...", help="Tasks, groups or tags of lm-eval, such as arc_easy.")
    ],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the results here, as JSON.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="The first documents of each task. Default: all.")
    ] = None,
    fewshot: Annotated[
        int | None, typer.Option("--fewshot", min=0, help="Examples in each request. Default: the task's own number.")
    ] = None,
    include_path: Annotated[
        Path | None,
        typer.Option("--include-path", metavar="DIR", help="A folder with task files (.yaml) of your own."),
    ] = None,
    against_base: Annotated[
        bool,
        typer.Option("--against-base/--no-against-base", help="Measure the base model too, on the same requests."),
    ] = True,
    base_only: Annotated[bool, typer.Option("--base-only", help="Measure the base model alone.")] = False,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Format requests as conversations; only then is the policy conditioned."),
    ] = False,
    condition: Annotated[
        str | None,
        typer.Option(
            "--condition",
            metavar="sensed|mean|ones|none|FILE",
            help="With --chat: the profile in each conversation (FILE: a JSON profile). Default: sensed, or none "
            "without a head.",
        ),
    ] = None,
    pin: Pins = None,
    weights: Weights = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Requests computed at a time; memory grows with it.")
    ] = 16,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=1, help="Resamples behind each interval.")] = 1000,
    base: Base = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Run lm-eval tasks on a policy and on its base model.

    Prints both values of each measure with their standard errors, their difference over the same documents with its
    interval, and in words whether anything was lost. Needs the extra lm-eval.
    """
    from paretune.cli.inputs import read_condition
    from paretune.errors import InputError
    from paretune.harness import benchmark as run
    from paretune.policy.folder import read_objectives
    from paretune.policy.weights import check_weights, parse_weights
    from paretune.profile import parse_pins

    names = [objective.name for objective in read_objectives(policy)]
    wanted = read_condition(condition, names, 1) if condition is not None else None
    if isinstance(wanted, list):
        raise InputError(f"--condition {condition}: one profile for all requests is needed, in a .json file")
    report = run(
        policy,
        tasks.split(","),
        out,
        models="base" if base_only else "both" if against_base else "policy",
        limit=limit,
        num_fewshot=fewshot,
        include_path=include_path,
        chat=chat,
        condition=wanted,
        pins=parse_pins(pin or (), names) or None,
        weights=check_weights(parse_weights(weights), names) if weights is not None else None,
        base=base,
        batch_size=batch_size,
        bootstrap=bootstrap,
        seed=seed,
        overwrite=overwrite,
        progress=bars(),
    )
    emit(report, as_json, lambda: _show(report, out))


def _show(report: dict[str, Any], out: Path | None) -> None:
    models = list(report["requests"])
    compared = len(models) == 2
    header = ["task", "measure", "documents"]
    header += [text for name in models for text in (name, "stderr")]
    header += ["difference", "from", "to"] if compared else []
    for line in table([_line(each, models, compared) for each in report["results"]], header=header):
        say(line)
    if compared:
        for each in report["results"]:
            say(each["text"])
        say(report["verdict"])
    for name, counts in report["requests"].items():
        if counts["truncated"]:
            say(f"{counts['truncated']:,} requests did not fit the {name}'s context and were cut from the left")
    if out is not None:
        say(f"results: {out}")


def _line(each: dict[str, Any], models: list[str], compared: bool) -> list[object]:
    measure = each["metric"] + (f" ({each['filter']})" if each["filter"] != "none" else "")
    cells: list[object] = [each["task"], measure, each["n"]]
    cells += [value for name in models for value in (each[name]["value"], each[name]["stderr"])]
    found = each.get("difference", {})
    return cells + ([found.get("value"), found.get("low"), found.get("high")] if compared else [])


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(benchmark)
