"""Small worlds for online rounds: rows scored by rewards that can score a new answer, and policies trained on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import QUESTIONS, TOPICS
from paretune.data import store_objectives, stored_objectives
from paretune.methods import get_method, train
from paretune.profile import Objective
from paretune.rewards import score

SPECS = {"brevity": "lexical:brevity", "vowels": "python:improve_rewards:vowels"}
SETTINGS = ("dtype=float32", "epochs=1", "batch_size=10", "lora_r=4", "validation=0.2")
HEAD = ("head.width=16", "head.depth=1", "head.skip=false", "head_epochs=2")
QUICK: dict[str, Any] = dict(max_new_tokens=8, prompts_per_round=6, validation_prompts=3, settings=("epochs=1",))
"""Rounds in a few seconds."""


def write_data(path: Path, specs: dict[str, str] | None = None) -> Path:
    """24 prompts with three completions each, scored by `specs`."""
    raw = path.with_name("raw.jsonl")
    with raw.open("w") as file:
        for at in range(24):
            topic = TOPICS[at % 12]
            texts = [
                f"It is {topic}.",
                f"Well, {topic} are a fine thing, and many people like them.",
                f"Hmm, {topic}? Oui, aeiou!",
            ]
            row = {"id": f"p{at:02d}", "prompt": QUESTIONS[at // 12].format(topic), "completions": texts}
            file.write(json.dumps(row) + "\n")
    score(raw, [f"{name}={spec}" for name, spec in (specs or SPECS).items()], path)
    raw.unlink()
    return path


def add_scores(data: Path, name: str) -> None:
    """One more score a completion, of which there is no reward."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    for at, row in enumerate(rows):
        for k, each in enumerate(row["completions"]):
            each["scores"][name] = (at + k) % 5
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    store_objectives(data, [*(stored_objectives(data) or []), Objective(name)])


def make_policy(data: Path, model: Path, out: Path, method: str = "sga", *settings: str) -> Path:
    """A policy trained in a blink."""
    head = HEAD if get_method(method).senses else ()
    train(method, data, str(model), out, settings=[*SETTINGS, *head, *settings])
    return out
