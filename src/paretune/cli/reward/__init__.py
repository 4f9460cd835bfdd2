"""`paretune reward`: a group of verbs that make reward models and look at them."""

from __future__ import annotations

import typer

from paretune.cli.reward import train

verbs = typer.Typer(
    help="Make reward models from preferences and ratings.", no_args_is_help=True, rich_markup_mode=None
)
train.register(verbs)


def register(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(verbs, name="reward")
