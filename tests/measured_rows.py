"""Rows scored by rewards that can score new answers too, as methods need that sample while they train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paretune.data import store_objectives
from paretune.profile import Objective

TOPICS = ["tea", "rain", "bees", "chess", "bread", "stars", "rivers", "clocks", "maps", "drums"]
TEXTS = ["It is {}.", "Well, {} are a fine thing!", "Long ago, nobody knew of {} at all; now everybody does."]


def letters(completions: list[str], **columns: Any) -> list[float]:
    """The share of an answer's characters that are letters."""
    return [sum(map(str.isalpha, text)) / max(1, len(text)) for text in completions]


def short(completions: list[str], **columns: Any) -> list[float]:
    """Minus an answer's characters."""
    return [-float(len(text)) for text in completions]


def vowels(completions: list[str], **columns: Any) -> list[float]:
    """How many vowels an answer has."""
    return [float(sum(letter in "aeiou" for letter in text)) for text in completions]


def picky(completions: list[str], **columns: Any) -> list[float | None]:
    """`vowels`, of answers with an even number of characters only."""
    return [each if len(text) % 2 == 0 else None for text, each in zip(completions, vowels(completions), strict=True)]


def spaces(completions: list[str], **columns: Any) -> list[float]:
    """How many spaces an answer has."""
    return [float(text.count(" ")) for text in completions]


MEASURES = {"letters": letters, "short": short, "vowels": vowels, "picky": picky, "spaces": spaces}


def write_measured(path: Path, *names: str) -> Path:
    """Ten prompts with three answers each, scored by these measures; the objectives lie beside the rows."""
    with path.open("w") as file:
        for at, topic in enumerate(TOPICS):
            texts = [text.format(topic) for text in TEXTS]
            scores = {name: MEASURES[name](texts) for name in names}
            answers = [{"text": t, "scores": {n: scores[n][k] for n in names}} for k, t in enumerate(texts)]
            row = {"id": f"p{at}", "prompt": f"What is {topic}?", "completions": answers}
            file.write(json.dumps(row) + "\n")
    store_objectives(path, [Objective(name, f"python:measured_rows:{name}") for name in names])
    return path
