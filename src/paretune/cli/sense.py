"""`paretune sense`: which profile a policy predicts for a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.inputs import check_target_file, read_prompts
from paretune.cli.options import Base, Json, Overwrite, Pins, PolicyFolder, Prompt, Prompts
from paretune.cli.output import emit, profile_bars, say
from paretune.cli.progress import bars


def sense(
    policy: PolicyFolder,
    prompt: Prompt = None,
    prompts: Prompts = None,
    pin: Pins = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write JSON Lines here in place of printing.")] = None,
    base: Base = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Print the profile sensed for a prompt.

    A profile gives each objective a value in [0, 1]; 1 is its wanted end. Pinned objectives keep their pin, and the
    others are sensed given the pins. In brackets: the interval that holds 80% of the targets of prompts like those of
    training, where the policy's intervals are calibrated.
    """
    from paretune.files import write_jsonl
    from paretune.policy import load_policy
    from paretune.policy.folder import read_objectives
    from paretune.profile import parse_pins

    rows = read_prompts(prompt, prompts)
    check_target_file(out, overwrite=overwrite)
    pins = parse_pins(pin or (), [objective.name for objective in read_objectives(policy)])
    found = load_policy(policy, base=base).predict([row.prompt for row in rows], pins or None, progress=bars())
    records = [
        {"id": row.id, "prompt": row.to_dict()["prompt"], "profile": each.profile, "interval": each.interval}
        for row, each in zip(rows, found, strict=True)
    ]
    if out is not None:
        write_jsonl(out, records)

    def show() -> None:
        if out is not None:
            say(f"{out}: {len(records):,} profiles")
            return
        for at, (row, each) in enumerate(zip(rows, found, strict=True)):
            if len(rows) > 1:
                say(("\n" if at else "") + row.text)
            for line in profile_bars(each.profile, pins, interval=each.interval):
                say(line)

    emit({"rows": len(records), "out": out} if out else {"profiles": records}, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(sense)
