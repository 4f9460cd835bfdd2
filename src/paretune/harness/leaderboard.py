"""Answers as the files of leaderboards that a judge model fills: AlpacaEval 2 and Arena-Hard.

alpaca-eval   a JSON list with an object an instruction: `instruction`, `output`, `generator`, and `dataset` where the
              prompts say it (https://github.com/tatsu-lab/alpaca_eval, "Evaluating a model")
arena-hard    JSON Lines for `data/BENCHMARK/model_answer/NAME.jsonl`: `uid` of the question, `ans_id`, `model`,
              `messages` with the answer as {"answer": text}, `tstamp` and the `metadata` of style control
              (https://github.com/lmarena/arena-hard-auto, v2)
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paretune.data.rows import Row
from paretune.errors import InputError, did_you_mean
from paretune.files import write_json, write_jsonl
from paretune.policy.policy import Generation

FORMATS = ("jsonl", "alpaca-eval", "arena-hard")
"""`jsonl` is our own: what `paretune generate --out` writes."""
ENDINGS = {"alpaca-eval": ".json", "arena-hard": ".jsonl"}

_FENCED = re.compile(r"```[^`]*```")
_BOLD = {"**": re.compile(r"\*\*[^*\n]+\*\*"), "__": re.compile(r"__[^_\n]+__")}
_LISTS = {"ordered": re.compile(r"^\s*\d+\.\s", re.M), "unordered": re.compile(r"^\s*[-*+]\s", re.M)}


def check_leaderboard(format: str, rows: Sequence[Row], out: Path | None, name: str) -> None:
    """Refuse, before anything is generated, what the leaderboard could not read.

    Raises `InputError` for an unknown format, a file name its reader does not take, prompts that are no single
    instruction (AlpacaEval) and questions without a `uid` of their own (Arena-Hard).
    """
    if format not in FORMATS:
        raise InputError(f"unknown format '{format}'.{did_you_mean(format, FORMATS)}")
    if format == "jsonl":
        return
    if out is None:
        raise InputError(f"the format {format} is a file; say where with --out")
    if out.suffix != ENDINGS[format]:
        raise InputError(f"the format {format} is read from a file whose name ends in {ENDINGS[format]}", file=out)
    if not name.strip():
        raise InputError("the name of the generator is empty")
    if format == "alpaca-eval":
        for row in rows:
            if len(row.prompt) > 1:
                raise InputError(
                    f"row '{row.id}': AlpacaEval's instructions are single texts, this prompt has {len(row.prompt)} "
                    "messages"
                )
        return
    if out.stem != name:
        raise InputError(f"Arena-Hard knows answers by the file's name: call it {name}.jsonl, or give --name", file=out)
    seen: set[str] = set()
    for row in rows:
        uid = row.extra.get("uid")
        if not isinstance(uid, str) or not uid:
            raise InputError(f"row '{row.id}': has no uid, by which Arena-Hard finds an answer; use its question.jsonl")
        if uid in seen:
            raise InputError(f"row '{row.id}': the uid '{uid}' is there twice")
        seen.add(uid)


def write_leaderboard(format: str, out: Path, rows: Sequence[Row], answers: Sequence[Generation], name: str) -> None:
    """Write the file, whole or not at all; what `check_leaderboard` refuses is not looked for again."""
    pairs = list(zip(rows, answers, strict=True))
    if format == "alpaca-eval":
        write_json(out, [_alpaca(row, answer, name) for row, answer in pairs])
    else:
        write_jsonl(out, [_arena(row, answer, name) for row, answer in pairs])


def _alpaca(row: Row, answer: Generation, name: str) -> dict[str, Any]:
    said = [row.extra, *(each.extra for each in row.completions)]  # its own data set comes with a model's outputs
    dataset = next((each["dataset"] for each in said if "dataset" in each), None)
    return {
        **({"dataset": dataset} if dataset is not None else {}),
        "instruction": row.text,
        "output": answer.text,
        "generator": name,
    }


def _arena(row: Row, answer: Generation, name: str) -> dict[str, Any]:
    uid = str(row.extra["uid"])
    return {
        "uid": uid,
        "ans_id": hashlib.sha256(f"{name}\x1f{uid}\x1f{answer.text}".encode("utf-8", "replace")).hexdigest()[:22],
        "model": name,
        "messages": [*row.prompt, {"role": "assistant", "content": {"answer": answer.text}}],
        "tstamp": time.time(),
        "metadata": {"token_len": answer.tokens, **markdown_counts(answer.text)},
    }


def markdown_counts(text: str) -> dict[str, dict[str, int]]:
    """Headers by level, list items and bold spans of an answer outside its code blocks: what style control controls."""
    plain = _FENCED.sub("``````", text)
    return {
        "header_count": {f"h{n}": len(re.findall(rf"^#{{{n}}}\s", plain, re.M)) for n in range(1, 7)},
        "list_count": {kind: len(pattern.findall(plain)) for kind, pattern in _LISTS.items()},
        "bold_count": {mark: len(pattern.findall(plain)) for mark, pattern in _BOLD.items()},
    }
