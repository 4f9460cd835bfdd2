"""PKU-SafeRLHF (Ji et al. 2024, arXiv:2406.15513): two answers with two orders, one by help and one by safety.

Scores are `safe` (1 or 0) and, where published, `severity` (0 to 3, less is better). The two orders stay apart as
preferences `better` and `safer`. Its question-answer form and BeaverTails (arXiv:2307.04657) judge one answer a record.
"""

from __future__ import annotations

from typing import Any

from paretune.data.adapters.base import RESERVED, Adapter, Raw, flag, has, number, prompt_text, rest, text
from paretune.data.records import BadRow, show

ORDERS = {"better": "better_response_id", "safer": "safer_response_id"}


def _row(record: Raw) -> dict[str, Any]:
    answers = [_answer(record, index) for index in (0, 1)]
    preferences = {name: _order(record, column) for name, column in ORDERS.items()}
    used = {"prompt", *ORDERS.values(), *(name for index in (0, 1) for name in _columns(record, index))}
    return {
        "prompt": prompt_text(record, "prompt"),
        "completions": answers,
        "preferences": {name: order for name, order in preferences.items() if order},
        **rest(record, used, ("id", "completions", "completion", "chosen", "rejected", "wanted", "preferences")),
    }


def _columns(record: Raw, index: int) -> list[str]:
    own = (f"response_{index}", f"is_response_{index}_safe")
    return [name for name in record if name in own or name.startswith(f"response_{index}_")]


def _answer(record: Raw, index: int) -> dict[str, Any]:
    prefix, safe, severity = f"response_{index}_", f"is_response_{index}_safe", f"response_{index}_severity_level"
    scores: dict[str, float | None] = {}
    if safe in record:
        is_safe = flag(record[safe], safe)
        scores["safe"] = None if is_safe is None else float(is_safe)
    if severity in record:
        scores["severity"] = number(record[severity], severity)
    about = {name.removeprefix(prefix): record[name] for name in record if name.startswith(prefix) and name != severity}
    return {"text": text(record, f"response_{index}"), "scores": scores, **rest(about, (), RESERVED)}


def _order(record: Raw, column: str) -> list[list[int]]:
    """[[winner, loser]], or nothing where no order is given (-1 or null)."""
    winner = number(record.get(column), column)
    if winner is None or winner == -1:
        return []
    if winner not in (0, 1):
        raise BadRow("the preferred response must be 0 or 1", field=column, found=show(record[column]))
    return [[int(winner), 1 - int(winner)]]


def _judged_row(record: Raw) -> dict[str, Any]:
    is_safe = flag(record.get("is_safe"), "is_safe")
    scores: dict[str, float | None] = {"safe": None if is_safe is None else float(is_safe)}
    if "severity_level" in record:
        scores["severity"] = number(record["severity_level"], "severity_level")
    kept = rest(record, ("prompt", "response", "is_safe", "severity_level"))
    answer = {"text": text(record, "response"), "scores": scores, **kept}
    return {"prompt": prompt_text(record, "prompt"), "completions": [answer]}


PKU = Adapter(
    "pku-saferlhf",
    "PKU-Alignment/PKU-SafeRLHF: two answers, ordered by help and by safety",
    "prompt, response_0, response_1, better_response_id or safer_response_id",
    lambda record: (
        has(record, "prompt", "response_0", "response_1") and any(name in record for name in ORDERS.values())
    ),
    must=("prompt", "response_0", "response_1"),
    row=_row,
    minimise=("severity",),
)
JUDGED = Adapter(
    "pku-qa",
    "PKU-Alignment/PKU-SafeRLHF-QA and BeaverTails: an answer, and whether it is safe",
    "prompt, response, is_safe (severity_level)",
    lambda record: has(record, "prompt", "response", "is_safe"),
    must=("prompt", "response"),
    row=_judged_row,
    merges=True,
    minimise=("severity",),
)
