"""Any table, by a map from what a row needs to the table's columns: `prompt=question`, `scores.helpful=rating`.

A source column is named as it stands or, nested, by dots (`meta.answers.0`). With one answer a record (`completion`)
records of the same prompt are joined; `completions.N` and `chosen` with `rejected` are whole rows. A table whose own
columns are called like that (`prompt`, `completion`, `scores.helpful`) needs no map.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from paretune.data.adapters.base import Adapter, Raw, flag, number, rest
from paretune.data.formats import LABELS
from paretune.data.records import BadRow, show
from paretune.errors import InputError, did_you_mean

Columns = Mapping[str, str]
"""What a row needs -> the column it comes from."""

PLAIN = ("prompt", "system", "id", "completion", "chosen", "rejected", "label")
TARGETS = (*PLAIN, "completions.N", "scores.NAME", "completions.N.scores.NAME", "wanted.NAME")
_TARGET = re.compile(r"(completions)\.(\d+)(?:\.scores\.(.+))?|(chosen|rejected)\.scores\.(.+)|(scores|wanted)\.(.+)")
_ABSENT = object()


def check_columns(columns: Columns) -> None:
    """Refuse a map that no row can be made of. Raises `InputError`."""
    for target, column in columns.items():
        if target not in PLAIN and not _TARGET.fullmatch(target):
            raise InputError(f"a map cannot set '{target}'.{did_you_mean(target, TARGETS)}")
        if not column:
            raise InputError(f"a map needs the column that '{target}' comes from: {target}=COLUMN")
    numbered = sorted({int(match[2]) for match in map(_TARGET.fullmatch, columns) if match and match[1]})
    ways = [name for name, used in _ways(columns, numbered).items() if used]
    if len(ways) > 1:
        raise InputError(f"a map has the answers one way, not as {' and '.join(ways)}")
    if "prompt" not in columns and "chosen" not in columns:
        raise InputError("a map needs the prompt: prompt=COLUMN")
    if ("chosen" in columns) != ("rejected" in columns):
        raise InputError("a map that has one of 'chosen' and 'rejected' needs the other too")
    if numbered and any(f"completions.{at}" not in columns for at in range(numbered[-1] + 1)):
        raise InputError(f"a map with completions.{numbered[-1]} needs every number from completions.0 on")
    alone = [target for target in columns if target == "label" or target.startswith("scores.")]
    if alone and "completion" not in columns:
        raise InputError(f"'{alone[0]}' belongs to one answer: a map with it needs completion=COLUMN")
    if any(target.startswith(("chosen.", "rejected.")) for target in columns) and "chosen" not in columns:
        raise InputError("scores of 'chosen' or 'rejected' need chosen=COLUMN and rejected=COLUMN")


def _ways(columns: Columns, numbered: list[int]) -> dict[str, bool]:
    sides = "chosen" in columns or "rejected" in columns
    return {"completion": "completion" in columns, "completions.N": bool(numbered), "chosen and rejected": sides}


def table_adapter(columns: Columns) -> Adapter:
    """The adapter of a map. Raises `InputError` when no row can be made of it."""
    check_columns(columns)
    needs = ", ".join(dict.fromkeys(columns.values()))
    return Adapter(
        "table",
        "a table with a map of its columns",
        needs,
        lambda record: True,
        row=lambda record: _row(record, columns),
        merges="completion" in columns,
    )


def own_columns(names: Sequence[str]) -> dict[str, str]:
    """The map of a table that is headed by what a row needs, scores among it; else nothing."""
    if not any(_TARGET.fullmatch(name) for name in names):
        return {}
    return {name: name for name in names if name in PLAIN or _TARGET.fullmatch(name)}


def missing_columns(columns: Columns, names: Mapping[str, Any]) -> list[str]:
    """The map's source columns that a table with columns `names` cannot have."""
    return [name for name in columns.values() if name not in names and name.partition(".")[0] not in names]


def _row(record: Raw, columns: Columns) -> dict[str, Any]:
    found = {target: _cell(record, column) for target, column in columns.items()}
    used = {name for name in columns.values() if name in record}
    used |= {name.partition(".")[0] for name in columns.values() if name not in record}
    prompt = _prompt(found.get("prompt"), found.get("system"), columns)
    answers = _answers(found, columns)
    if "completion" in columns:
        answers[0] |= rest(record, used)
        kept = {}
    else:
        kept = rest(record, used, ("id", "prompt", "wanted", "preferences", "completion", "completions", *LABELS))
    wanted = {
        target.partition(".")[2]: number(value, columns[target])
        for target, value in found.items()
        if target.startswith("wanted.")
    }
    row_id = {"id": found["id"]} if found.get("id") not in (None, "") else {}
    made = {"prompt": prompt} if prompt is not None else {}
    if "chosen" in columns and prompt is None:
        return {**row_id, **{side: found.get(side) for side in LABELS}, "wanted": wanted or None, **kept}
    return {**row_id, **made, "completions": answers, "wanted": wanted or None, **kept}


def _cell(record: Raw, column: str) -> Any:
    """The value of a column, by its own name or by dots into what it holds; `None` where there is nothing."""
    if column in record:
        return record[column]
    value: Any = record
    for part in column.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, _ABSENT)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return None if value is _ABSENT else value


def reaches(value: Any, parts: Sequence[str]) -> bool:
    """Is there such a place in a record, in this or another entry of a list?"""
    if not parts:
        return True
    if isinstance(value, Mapping):
        return parts[0] in value and reaches(value[parts[0]], parts[1:])
    return isinstance(value, list) and parts[0].isdecimal() and any(reaches(item, parts[1:]) for item in value)


def _prompt(prompt: Any, system: Any, columns: Columns) -> Any:
    if prompt is not None and not isinstance(prompt, (str, list)):
        prompt = str(prompt) if isinstance(prompt, (int, float)) and not isinstance(prompt, bool) else prompt
    if isinstance(prompt, str) and not prompt.strip():
        raise BadRow("the prompt is empty", field=columns["prompt"])
    if prompt is None and "prompt" in columns:
        raise BadRow("there is no prompt", field=columns["prompt"])
    if system is None or system == "":
        return prompt
    if not isinstance(system, str):
        raise BadRow("a system prompt must be text", field=columns["system"], found=show(system))
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [{"role": "system", "content": system}, *(turns or [])]


def _answers(found: Mapping[str, Any], columns: Columns) -> list[dict[str, Any]]:
    """The answers that the map names, each with its scores; an empty cell of `completions.N` is no answer."""
    if "completion" in columns:
        liked = found.get("label")
        if "label" in columns and liked not in LABELS:
            said = flag(liked, columns["label"])
            liked = None if said is None else LABELS[0 if said else 1]
        answer = _answer(found, columns, "completion", "scores.")
        return [answer | ({"label": liked} if liked is not None else {})]
    if "chosen" in columns:
        return [_answer(found, columns, side, f"{side}.scores.") | {"label": side} for side in LABELS]
    count = sum(1 for target in columns if re.fullmatch(r"completions\.\d+", target))
    named = [f"completions.{at}" for at in range(count)]
    return [_answer(found, columns, name, f"{name}.scores.") for name in named if found.get(name) is not None]


def _answer(found: Mapping[str, Any], columns: Columns, target: str, prefix: str) -> dict[str, Any]:
    value = found.get(target)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadRow("an answer must be text", field=columns[target], found=show(value))
    scores = {
        name.removeprefix(prefix): number(score, columns[name])
        for name, score in found.items()
        if name.startswith(prefix)
    }
    return {"text": value, "scores": scores} if scores else {"text": value}
