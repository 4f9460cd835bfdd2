"""Asking policies: greedy answers, timed, each call kept in the run's journal so that none is made twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from paretune.data.rows import Messages
from paretune.evaluation.journal import Journal
from paretune.profile import Profile
from paretune.progress import Progress


@dataclass(frozen=True)
class Asker:
    """Asks one policy; `who` tells it from the others of the run, and a policy from its base model.

    The length limit is the policy's own where `max_new_tokens` is None. Without a journal nothing is kept.
    """

    who: tuple[str, ...]
    max_new_tokens: int | None
    seed: int
    progress: Progress
    journal: Journal | None = None

    def __call__(
        self,
        policy: Any,
        prompts: Sequence[Messages],
        condition: str | Sequence[Profile | None] | None,
        *,
        pins: Sequence[Profile] | None = None,
        weights: Sequence[Profile] | None = None,
    ) -> tuple[list[Any], float]:
        """Answers under a condition, or weights in its place (`paretune.policy.Generation`s), and the seconds."""
        asked = [self.who, list(prompts), condition, pins, weights]
        found = self.journal.find(asked) if self.journal is not None else None
        if found is not None:
            with self.progress("kept answers", len(prompts)) as task:
                task.advance(len(prompts))
            return found
        more: dict[str, Any] = {} if self.max_new_tokens is None else {"max_new_tokens": self.max_new_tokens}
        if weights is not None:
            more["weights"] = weights
        start = perf_counter()
        answers = list(
            policy.generate(
                prompts,
                condition=condition,
                pins=pins,
                temperature=0.0,
                seed=self.seed,
                progress=self.progress,
                **more,
            )
        )
        seconds = perf_counter() - start
        if self.journal is not None:
            self.journal.keep(asked, answers, seconds)
        return answers, seconds
