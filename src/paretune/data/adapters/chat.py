"""Whole conversations: `messages` (as for fine-tuning chat models) and ShareGPT's `conversations`.

The last answer is the completion, what stands before it the prompt; a conversation that ends with the user is a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paretune.data.adapters.base import Adapter, Raw, items, rest
from paretune.data.records import BadRow, show

_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_ROW = ("prompt", "completion", "completions", "chosen", "rejected", "wanted", "preferences")


def _messages_row(record: Raw) -> dict[str, Any]:
    return _row(record, "messages", items(record, "messages"))


def _sharegpt_row(record: Raw) -> dict[str, Any]:
    messages = []
    for at, turn in enumerate(items(record, "conversations")):
        where = f"conversations[{at}]"
        if not isinstance(turn, Mapping) or str(turn.get("from")) not in _SPEAKERS:
            cause = f"a turn must be an object whose 'from' is one of {', '.join(_SPEAKERS)}"
            raise BadRow(cause, field=where, found=show(turn))
        messages.append({"role": _SPEAKERS[str(turn["from"])], "content": turn.get("value")})
    return _row(record, "conversations", messages)


def _row(record: Raw, column: str, messages: list[Any]) -> dict[str, Any]:
    if not messages:
        raise BadRow("the conversation is empty", field=column)
    last = messages[-1]
    answer = isinstance(last, Mapping) and last.get("role") == "assistant"
    if answer and len(messages) == 1:
        raise BadRow("the conversation has an answer but no prompt", field=column)
    row = {"prompt": messages[:-1], "completion": messages[-1:]} if answer else {"prompt": messages}
    return row | rest(record, (column,), _ROW)


def _is_chat(record: Raw, column: str) -> bool:
    return isinstance(record.get(column), list) and not any(name in record for name in _ROW)


MESSAGES = Adapter(
    "messages",
    "conversations of roles and contents; the last answer is the completion",
    "messages",
    lambda record: _is_chat(record, "messages"),
    must=("messages",),
    row=_messages_row,
)
SHAREGPT = Adapter(
    "sharegpt",
    "ShareGPT conversations (from, value)",
    "conversations",
    lambda record: _is_chat(record, "conversations"),
    must=("conversations",),
    row=_sharegpt_row,
)
