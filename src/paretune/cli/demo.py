"""`paretune demo`: the whole loop on the embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.options import Json, Seed
from paretune.cli.output import emit, say
from paretune.cli.progress import bars


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where policy and report go.")] = Path("runs/demo"),
    fast: Annotated[bool, typer.Option("--fast", help="Fewer rows and steps: a look, not a result.")] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run the whole loop on a small model.

    Trains, senses, generates and evaluates on a model and prompts that need no hub, and says in words what it shows.
    """
    from paretune.demo import run

    result = run(out, fast=fast, seed=seed, progress=bars())
    emit(result, as_json, lambda: say(result.summary()))


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(demo)
