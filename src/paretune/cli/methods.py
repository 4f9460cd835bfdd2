"""`paretune methods`: the ways to train a policy."""

from __future__ import annotations

import typer

from paretune.cli.options import Json
from paretune.cli.output import emit, say, table


def methods(as_json: Json = False) -> None:
    """List the training methods, a line each."""
    from paretune.methods.registry import METHODS

    listed = [{"name": method.name, "help": method.help} for method in METHODS.values()]

    def show() -> None:
        for line in table([[method["name"], method["help"]] for method in listed]):
            say(line)

    emit({"methods": listed}, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(methods)
