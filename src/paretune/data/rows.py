"""The row every room works on: a prompt, its completions with raw scores, and perhaps a person's wanted profile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""
Messages = list[Message]


@dataclass(frozen=True)
class Completion:
    """One answer with its raw scores; a `None` score could not be had, and is masked and counted.

    `label` is "chosen" or "rejected" where the data says so (preference rows). `extra` keeps what else the row said
    (the instruction it was sampled under, the model that wrote it), so that writing a row back loses nothing.
    """

    text: str
    scores: dict[str, float | None] = field(default_factory=dict)
    label: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON form of the row contract."""
        out: dict[str, Any] = {"text": self.text}
        if self.scores:
            out["scores"] = dict(self.scores)
        if self.label is not None:
            out["label"] = self.label
        return out | self.extra


@dataclass(frozen=True)
class Row:
    """A prompt (a conversation that ends with the user), its completions, perhaps a person's wanted profile.

    `preferences` holds, per objective, which completion is preferred to which other: (winner, loser) as indices into
    `completions`. It is for data with several orders of the same answers, where one pair of labels cannot say them all.
    """

    prompt: Messages
    completions: tuple[Completion, ...] = ()
    id: str = ""
    wanted: Mapping[str, float] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    preferences: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The last user message."""
        return self.prompt[-1]["content"]

    def to_dict(self) -> dict[str, Any]:
        """JSON form; a prompt of a single user message is written as plain text."""
        plain = len(self.prompt) == 1 and self.prompt[0]["role"] == "user"
        out: dict[str, Any] = {"id": self.id, "prompt": self.text if plain else self.prompt}
        if self.completions:
            out["completions"] = [completion.to_dict() for completion in self.completions]
        if self.wanted is not None:
            out["wanted"] = dict(self.wanted)
        if self.preferences:
            out["preferences"] = {name: [list(pair) for pair in pairs] for name, pairs in self.preferences.items()}
        return out | self.extra


def prompt_key(messages: Sequence[Mapping[str, str]]) -> str:
    """A short stable key of a prompt, by which splits are made and leakage is found."""
    text = json.dumps([dict(message) for message in messages], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def rows_digest(rows: Iterable[Row]) -> str:
    """SHA-256 of rows and all they hold, in hexadecimal: equal for equal rows in the same order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row.to_dict(), sort_keys=True, default=str).encode("utf-8") + b"\n")
    return digest.hexdigest()
