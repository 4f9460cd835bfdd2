"""Rows of our own, TRL's types and HH-RLHF transcripts, which `parse_row` reads as they are; a prompt with a response.

TRL's unpaired preference type is one answer a record; its stepwise supervision and language modelling types are known
and refused in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paretune.data.adapters.base import Adapter, Raw, flag, has, rest, text
from paretune.data.formats import TURN, answer_text

_BOTH = {"score_chosen", "score_rejected"}
ANSWERS = ("completions", "completion", "chosen", "rejected")


def _transcripts(record: Raw) -> bool:
    sides = [record.get(name) for name in ("chosen", "rejected")]
    return "prompt" not in record and all(isinstance(side, str) and TURN.match(side) for side in sides)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or str(value).strip().lower() in ("true", "false")


def _unpaired_row(record: Raw) -> dict[str, Any]:
    liked = flag(record.get("label"), "label")
    label = {} if liked is None else {"label": "chosen" if liked else "rejected"}
    scores = _own_scores(record)
    kept = rest(record, ("id", "prompt", "completion", "label", *scores))
    answer = {"text": answer_text(record.get("completion"), "completion"), **scores, **label, **kept}
    return _row_id(record) | {"prompt": record.get("prompt"), "completions": [answer]}


def _response_row(record: Raw) -> dict[str, Any]:
    scores = _own_scores(record)
    answer = {"text": text(record, "response"), **scores, **rest(record, ("id", "prompt", "response", *scores))}
    return _row_id(record) | {"prompt": record.get("prompt"), "completions": [answer]}


def _own_scores(record: Raw) -> Raw:
    """The `scores` that a record of one answer has of its own; a column of that name with anything else is none."""
    return {"scores": record["scores"]} if isinstance(record.get("scores"), Mapping) else {}


def _row_id(record: Raw) -> dict[str, Any]:
    return {"id": record["id"]} if record.get("id") is not None else {}


STEPWISE = Adapter(
    "trl-stepwise",
    "TRL's stepwise supervision",
    "prompt, completions, labels",
    lambda record: has(record, "prompt", "completions") and isinstance(record.get("labels"), list),
    refused="TRL's stepwise supervision (prompt, completions, labels) labels the steps of one answer; here an answer "
    "is scored as a whole. Join the steps into one text and keep what is known of it in 'scores'",
)
ROWS = Adapter(
    "rows",
    "rows of our own: a prompt and its completions with scores",
    "prompt, completions",
    lambda record: has(record, "prompt", "completions") and not STEPWISE.fits(record),
)
UNPAIRED = Adapter(
    "trl-unpaired",
    "TRL unpaired preference: an answer that was liked or not",
    "prompt, completion, label (true or false)",
    lambda record: has(record, "prompt", "completion", "label") and _is_flag(record["label"]),
    must=("prompt", "completion"),
    row=_unpaired_row,
    merges=True,
)
RESPONSE = Adapter(
    "prompt-response",
    "a prompt and an answer to it",
    "prompt, response",
    lambda record: (
        has(record, "prompt")
        and isinstance(record.get("response"), str)
        and not {"is_safe", "helpfulness"} & set(record)
    ),
    must=("prompt", "response"),
    row=_response_row,
    merges=True,
)
TRL = Adapter(
    "trl",
    "TRL prompt-completion and preference, plain or conversational",
    "prompt, completion; or chosen, rejected",
    lambda record: (
        (has(record, "prompt", "completion") and not UNPAIRED.fits(record))
        or (("chosen" in record or "rejected" in record) and not record.keys() >= _BOTH and not _transcripts(record))
    ),
)
HH = Adapter(
    "hh-rlhf",
    "Anthropic HH-RLHF: two transcripts of Human: and Assistant: turns",
    "chosen, rejected (transcripts)",
    _transcripts,
)
PROMPTS = Adapter(
    "prompts",
    "prompts alone (TRL prompt-only)",
    "prompt",
    lambda record: has(record, "prompt") and not any(has(record, name) for name in ANSWERS),
)
TEXT_ONLY = Adapter(
    "trl-text",
    "TRL language modelling",
    "text",
    lambda record: has(record, "text") and "prompt" not in record and "messages" not in record,
    refused="the rows have a 'text' but no prompt; say with --map prompt=text that it is one, or which other column is",
)
