"""Prompts given in Python or on the command line: checked by the rules of a file's rows, and told by their number."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from paretune.data.formats import parse_row
from paretune.data.records import BadRow
from paretune.data.rows import Messages
from paretune.errors import InputError


def as_chats(prompts: Sequence[str | Messages]) -> list[Messages]:
    """Every prompt as messages. Raises `InputError` for what is no list, and for a prompt no file may hold."""
    listed = isinstance(prompts, Collection) and not isinstance(prompts, (str, bytes, Mapping))
    if not listed or any(isinstance(each, Mapping) for each in prompts):
        raise InputError(
            "prompts is a list of prompts (each a text or a list of messages); for one prompt give [prompt]"
        )
    return [as_chat(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, start=1)]


def as_chat(prompt: str | Messages, name: str) -> Messages:
    """One prompt as messages, by the rules of a row's `prompt`; an `InputError` calls it by its name."""
    try:
        return parse_row({"prompt": prompt}).prompt
    except BadRow as bad:
        inside = f" ({bad.field})" if bad.field not in (None, "prompt") else ""
        raise InputError(f"{name}{inside}: {bad}") from None
