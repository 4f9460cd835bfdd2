"""UltraFeedback (Cui et al. 2023, arXiv:2310.01377), as published by openbmb and as binarized by HuggingFaceH4.

The published form has four answers an instruction, each rated 1 to 5 by GPT-4 for four aspects: these are the scores.
Its `overall_score` is known to be wrong in some rows (a 10 where the critique says 1), so it is kept but is no score.
The binarized form has two answers as conversations and only that overall score of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paretune.data.adapters.base import Adapter, Raw, has, items, number, prompt_text, rest
from paretune.data.formats import parse_row
from paretune.data.records import BadRow, show

ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")


def _row(record: Raw) -> dict[str, Any]:
    answers = items(record, "completions")
    return {
        "prompt": prompt_text(record, "instruction"),
        "completions": [_completion(answer, f"completions[{at}]") for at, answer in enumerate(answers)],
        **rest(record, ("instruction", "completions"), ("id", "prompt", "wanted", "preferences")),
    }


def _completion(answer: Any, field: str) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not isinstance(answer.get("response"), str):
        raise BadRow("a completion must be an object with a 'response'", field=field, found=show(answer))
    rated = answer.get("annotations") or {}
    if not isinstance(rated, Mapping):
        raise BadRow("'annotations' must be an object", field=f"{field}.annotations", found=show(rated))
    scores = {}
    for aspect in ASPECTS:
        each = rated.get(aspect) or {}
        where = f"{field}.annotations.{aspect}"
        if not isinstance(each, Mapping):
            raise BadRow("an annotation must be an object with a 'Rating'", field=where, found=show(each))
        scores[aspect] = number(each.get("Rating"), f"{where}.Rating")
    return {"text": answer["response"], "scores": scores, **rest(answer, ("response",))}


def _binarized_row(record: Raw) -> dict[str, Any]:
    sides = {name: record.get(name) for name in ("prompt", "chosen", "rejected")}
    row = parse_row(sides).to_dict()
    for answer, side in zip(row["completions"], ("chosen", "rejected"), strict=True):
        answer["scores"] = {"overall": number(record.get(f"score_{side}"), f"score_{side}")}
    # `messages` is the chosen conversation once more; `prompt_id` comes more than once, so it is no row's id
    used = ("id", *sides, "messages", "score_chosen", "score_rejected")
    row_id = {"id": record["id"]} if record.get("id") is not None else {}
    return {**row, "id": None, **row_id, **rest(record, used, ("wanted", "preferences", "completions", "completion"))}


ULTRAFEEDBACK = Adapter(
    "ultrafeedback",
    "openbmb/UltraFeedback: four rated answers an instruction",
    "instruction, completions (with response, annotations)",
    lambda record: has(record, "instruction") and isinstance(record.get("completions"), list),
    must=("instruction", "completions"),
    row=_row,
)
BINARIZED = Adapter(
    "ultrafeedback-binarized",
    "HuggingFaceH4/ultrafeedback_binarized and its like: a preference with a score of both sides",
    "chosen, rejected, score_chosen, score_rejected",
    lambda record: has(record, "chosen", "rejected") and {"score_chosen", "score_rejected"} <= record.keys(),
    must=("chosen", "rejected"),
    row=_binarized_row,
)
