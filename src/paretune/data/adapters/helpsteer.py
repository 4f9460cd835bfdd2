"""HelpSteer (arXiv:2311.09528), HelpSteer2 (arXiv:2406.08673), its preferences (arXiv:2410.01257) and HelpSteer3.

Ratings come one answer a record, those of a prompt in a row. Prompts of several turns are one text in HelpSteer2, with
`<extra_id_1>User` and `<extra_id_1>Assistant` between the turns; the first turn is the user's and has no mark.
"""

from __future__ import annotations

import re
from typing import Any

from paretune.data.adapters.base import Adapter, Raw, has, items, labelled, number, prompt_text, rest, text
from paretune.data.records import BadRow, show
from paretune.data.rows import Messages

RATINGS = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
_MARK = re.compile(r"\s*<extra_id_1>(User|Assistant)[ \t]*(?:\r?\n|\Z)")


def turns(prompt: str) -> str | Messages:
    """A prompt as published, as text or, with marks of turns, as a conversation that ends with the user."""
    if "<extra_id_1>" not in prompt:
        return prompt
    parts = _MARK.split(prompt)
    said = list(zip(["User", *parts[1::2]], parts[::2], strict=True))
    if not said[0][1].strip():  # the first turn marked too
        said = said[1:]
    if len(said) > 1 and said[-1][0] == "Assistant" and not said[-1][1].strip():  # the answer's own mark
        said = said[:-1]
    return [{"role": role.lower(), "content": content.strip()} for role, content in said]


def _row(record: Raw) -> dict[str, Any]:
    scores = {name: number(record[name], name) for name in RATINGS if name in record}
    answer = {"text": text(record, "response"), "scores": scores, **rest(record, ("prompt", "response", *RATINGS))}
    return {"prompt": turns(prompt_text(record, "prompt")), "completions": [answer]}


def _preference_row(record: Raw) -> dict[str, Any]:
    used = ("prompt", "response_1", "response_2")
    answers = labelled((text(record, used[1]), text(record, used[2])), _stronger(record, "preference_strength"))
    return {"prompt": turns(prompt_text(record, "prompt")), "completions": answers, **_others(record, used)}


def _third_row(record: Raw) -> dict[str, Any]:
    used = ("context", "response1", "response2")
    answers = labelled((text(record, used[1]), text(record, used[2])), _stronger(record, "overall_preference"))
    return {"prompt": items(record, "context"), "completions": answers, **_others(record, used)}


def _stronger(record: Raw, column: str) -> int | None:
    """-3 (the first is much better) to 3 (the second is); 0 is a tie."""
    strength = number(record.get(column), column)
    if strength is not None and not -3 <= strength <= 3:
        raise BadRow("a strength of preference must lie in [-3, 3]", field=column, found=show(strength))
    return None if not strength else int(strength > 0)


def _others(record: Raw, used: tuple[str, ...]) -> dict[str, Any]:
    return rest(record, used, ("prompt", "completions", "completion", "chosen", "rejected", "wanted", "preferences"))


RATED = Adapter(
    "helpsteer",
    "nvidia/HelpSteer and HelpSteer2: an answer rated 0 to 4 in five ways",
    "prompt, response, helpfulness, correctness, coherence (complexity, verbosity)",
    lambda record: has(record, "prompt", "response") and all(name in record for name in RATINGS[:3]),
    must=("prompt", "response"),
    row=_row,
    merges=True,
)
PREFERENCE = Adapter(
    "helpsteer2-preference",
    "the preferences of nvidia/HelpSteer2",
    "prompt, response_1, response_2, preference_strength",
    lambda record: has(record, "prompt", "response_1", "response_2", "preference_strength"),
    must=("prompt", "response_1", "response_2"),
    row=_preference_row,
)
THIRD = Adapter(
    "helpsteer3",
    "the preferences of nvidia/HelpSteer3",
    "context, response1, response2, overall_preference",
    lambda record: has(record, "context", "response1", "response2", "overall_preference"),
    must=("context", "response1", "response2"),
    row=_third_row,
)
