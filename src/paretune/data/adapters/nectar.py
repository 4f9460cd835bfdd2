"""Nectar (berkeley-nest/Nectar): seven ranked answers a prompt; the ranks become preferences `ranked`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paretune.data.adapters.base import Adapter, Raw, has, items, number, prompt_text, rest
from paretune.data.formats import TURN, parse_transcript
from paretune.data.records import BadRow, show
from paretune.data.rows import Messages

_ROW = ("id", "completions", "completion", "chosen", "rejected", "wanted", "preferences")


def _row(record: Raw) -> dict[str, Any]:
    answers = items(record, "answers")
    for at, answer in enumerate(answers):
        if not isinstance(answer, Mapping) or not isinstance(answer.get("answer"), str):
            raise BadRow("an answer must be an object with an 'answer'", field=f"answers[{at}]", found=show(answer))
    ranks = [number(answer.get("rank"), f"answers[{at}].rank") for at, answer in enumerate(answers)]
    ranked = [
        [winner, loser]
        for winner, high in enumerate(ranks)
        for loser, low in enumerate(ranks)
        if high is not None and low is not None and high < low
    ]
    return {
        "prompt": _prompt(prompt_text(record, "prompt")),
        "completions": [{"text": answer["answer"], **rest(answer, ("answer",))} for answer in answers],
        "preferences": {"ranked": ranked},
        **rest(record, ("prompt", "answers"), _ROW),
    }


def _prompt(prompt: str) -> str | Messages:
    """A transcript that ends with an empty answer, as published; other text as it is."""
    if not TURN.match(prompt):
        return prompt
    messages = parse_transcript(prompt, "prompt")
    return messages[:-1] if messages[-1]["role"] == "assistant" and not messages[-1]["content"] else messages


NECTAR = Adapter(
    "nectar",
    "berkeley-nest/Nectar and its like: ranked answers",
    "prompt, answers (with answer, rank)",
    lambda record: (
        has(record, "prompt")
        and isinstance(record.get("answers"), list)
        and all(isinstance(each, Mapping) and "rank" in each for each in record["answers"])
    ),
    must=("prompt", "answers"),
    row=_row,
)
