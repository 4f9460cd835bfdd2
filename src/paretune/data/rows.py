"""The row every room works on: a prompt, its completions with raw scores, and perhaps a person's wanted profile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paretune.errors import InputError

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
    """A prompt (a conversation that ends with the user), its completions, perhaps a person's wanted profile."""

    prompt: Messages
    completions: tuple[Completion, ...] = ()
    id: str = ""
    wanted: Mapping[str, float] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

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
        return out | self.extra


def as_messages(prompt: str | Messages) -> Messages:
    """A prompt as a conversation: plain text is one user message."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not all(isinstance(each, dict) for each in prompt):
        raise InputError(f"a prompt is text or a list of messages, found {type(prompt).__name__}")
    for message in prompt:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise InputError(f"a message has a role and a content, both text; found {message!r:.200}")
    return prompt


def prompt_key(messages: Sequence[Mapping[str, str]]) -> str:
    """A short stable key of a prompt, by which splits are made and leakage is found."""
    text = json.dumps([dict(message) for message in messages], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
