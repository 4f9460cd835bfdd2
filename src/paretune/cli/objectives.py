"""`paretune objectives`: what can measure an answer."""

from __future__ import annotations

import typer

from paretune.cli.options import Json
from paretune.cli.output import emit, say, table


def objectives(as_json: Json = False) -> None:
    """List the objective specs, a line each."""
    from paretune.rewards import list_rewards

    listed = [{"spec": spec, "help": text} for spec, text in list_rewards()]

    def show() -> None:
        for line in table([[reward["spec"], reward["help"]] for reward in listed]):
            say(line)

    emit({"objectives": listed}, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(objectives)
