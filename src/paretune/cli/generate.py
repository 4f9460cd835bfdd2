"""`paretune generate`: a policy's answers, guided by what it senses, by pins or by any condition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.inputs import check_target_file, read_condition, read_prompts
from paretune.cli.options import (
    Base,
    BatchSize,
    Json,
    MaxNewTokens,
    Overwrite,
    Pins,
    PolicyFolder,
    Prompt,
    Prompts,
    Seed,
    TopP,
    Weights,
)
from paretune.cli.output import complain, emit, say
from paretune.cli.progress import bars


def generate(
    policy: PolicyFolder,
    prompt: Prompt = None,
    prompts: Prompts = None,
    pin: Pins = None,
    condition: Annotated[
        str | None,
        typer.Option(
            "--condition",
            metavar="sensed|mean|ones|none|FILE",
            help="What guides the answers: the sensed profile, the training mean, all ones, nothing, or a file (.json: "
            "a profile for all prompts; .jsonl: a profile a prompt). Default: sensed (none without a head).",
        ),
    ] = None,
    weights: Weights = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest token.")] = 0.0,
    top_p: TopP = 1.0,
    max_new_tokens: MaxNewTokens = 128,
    seed: Seed = 0,
    batch_size: BatchSize = 64,
    out: Annotated[Path | None, typer.Option("--out", help="Write the answers here in place of printing.")] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="jsonl|alpaca-eval|arena-hard",
            help="What --out holds: JSON Lines, or the file that AlpacaEval 2 or Arena-Hard takes.",
        ),
    ] = "jsonl",
    name: Annotated[
        str | None,
        typer.Option("--name", help="The generator's name in a leaderboard's file. Default: the policy folder's."),
    ] = None,
    base: Base = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Answer prompts, guided by a profile.

    By default the profile is the one the policy senses; pins fix some of its values, and the others are sensed given
    them. --condition replaces what is sensed.
    """
    from paretune.errors import InputError
    from paretune.files import write_jsonl
    from paretune.harness.leaderboard import check_leaderboard, write_leaderboard
    from paretune.policy import load_policy
    from paretune.policy.engine import Sampling
    from paretune.policy.folder import read_objectives
    from paretune.policy.weights import SLACK, check_weights, equal_weights, parse_weights
    from paretune.profile import parse_pins

    rows = read_prompts(prompt, prompts)
    check_target_file(out, overwrite=overwrite)
    if name is not None and format == "jsonl":
        raise InputError("--name is for the formats alpaca-eval and arena-hard")
    generator = name if name is not None else policy.resolve().name
    check_leaderboard(format, rows, out, generator)
    # all that is cheap to tell, before the model is loaded
    Sampling(max_new_tokens, temperature, top_p)
    names = [objective.name for objective in read_objectives(policy)]
    wanted = read_condition(condition, names, len(rows)) if condition is not None else None
    pins = parse_pins(pin or (), names) or None
    weighed = check_weights(parse_weights(weights), names) if weights is not None else None
    answers = load_policy(policy, base=base).generate(
        [row.prompt for row in rows],
        condition=wanted,
        pins=pins,
        weights=weighed,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
        progress=bars(),
    )
    records = [
        {
            "id": row.id,
            "prompt": row.to_dict()["prompt"],
            "text": answer.text,
            "profile": answer.profile,
            "sensed": answer.sensed,
            "interval": answer.interval,
            "tokens": answer.tokens,
            "finished": answer.finished,
            **({"weights": answer.weights} if answer.weights is not None else {}),
        }
        for row, answer in zip(rows, answers, strict=True)
    ]
    if out is not None and format != "jsonl":
        write_leaderboard(format, out, rows, answers, generator)
    elif out is not None:
        write_jsonl(out, records)

    used, wished = answers[0].weights if answers else None, weighed or equal_weights(names)
    if used is not None and any(abs(used[each] - value) > SLACK for each, value in wished.items()):
        trained = ", ".join(f"{each}={value:.3g}" for each, value in used.items())
        complain(f"answered by the adapter for {trained}: of those trained the nearest", "note: ")

    def show() -> None:
        if out is not None:
            say(f"{out}: {len(records):,} answers")
            return
        for at, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            if len(rows) > 1:
                say(("\n" if at else "") + f"> {row.text}")
            say(answer.text)

    emit({"rows": len(records), "out": out} if out else {"answers": records}, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(generate)
