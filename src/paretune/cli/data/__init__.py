"""`paretune data`: a group of verbs that look at rows, convert them, split them and make pairs of them."""

from __future__ import annotations

import typer

from paretune.cli.data import convert, inspect, pairs, split


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Look at data, convert it, split it, make pairs of it.", no_args_is_help=True, rich_markup_mode=None
    )
    for verb in (inspect, convert, split, pairs):
        verb.register(group)
    app.add_typer(group, name="data")
