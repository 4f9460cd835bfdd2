"""The base model's own answers: what alignment started from, and a policy of its own in a comparison.

They are taken from a policy with its adapter switched off, before the adapter is merged, under no profile; each prompt
is asked once of each distinct base model, however many policies were made of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paretune.data import prompt_key
from paretune.data.rows import Messages
from paretune.evaluation.asking import Asker
from paretune.profile import Objective

METHOD = "base"


def identity(policy: Any) -> tuple[str, str, str]:
    """What tells one base model from another: its name, the fingerprint of its weights, the precision it runs in."""
    stored = policy.metadata
    return policy.base, str(stored.get("base_fingerprint", "")), str(stored.get("dtype", ""))


def has_base(policy: Any) -> bool:
    """Whether the base model is there: an adapter to switch off. (A policy without one may have been trained whole.)"""
    return getattr(policy, "peft", None) is not None


@dataclass
class BaseAnswers:
    """Greedy answers kept by base model and prompt; `ask` keeps no journal, for whoever asks here keeps one."""

    ask: Asker
    kept: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def of(self, policy: Any, prompts: Sequence[Messages]) -> list[Any]:
        """One answer (`paretune.policy.Generation`) a prompt, generated where none is yet; a policy that `has_base`."""
        own = self.kept.setdefault(identity(policy), {})
        missing = {key: prompt for prompt in prompts if (key := prompt_key(prompt)) not in own}
        if missing:
            with policy.peft.disable_adapter():
                answers, _ = self.ask(policy, list(missing.values()), "none")
            own |= zip(missing, answers, strict=True)
        return [own[prompt_key(prompt)] for prompt in prompts]


class BaseModel:
    """The base model of a policy, seen as a policy that takes neither profile nor weights."""

    method = METHOD
    has_head = takes_weights = takes_profile = False
    models_at_inference = 1

    def __init__(self, policy: Any, answers: BaseAnswers) -> None:
        self.policy, self.answers = policy, answers
        self.objectives: list[Objective] = policy.objectives
        self.renderer, self.base = policy.renderer, policy.base

    def generate(self, prompts: Sequence[Messages], **_: Any) -> list[Any]:
        """The base model's answers, whatever else is asked."""
        return [_plain(each) for each in self.answers.of(self.policy, prompts)]


def _plain(answer: Any) -> Any:
    """The answer without what the policy's head sensed for its prompt, which the base model has no part in."""
    return replace(answer, sensed=None, interval=None)
