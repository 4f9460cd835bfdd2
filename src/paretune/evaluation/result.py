"""What one run of `evaluate` was asked for, and what it found for one policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paretune.evaluation.control import Step
from paretune.evaluation.summary import Answers
from paretune.evaluation.testset import TestSet
from paretune.evaluation.winrate import MARGIN
from paretune.profile import Objective


@dataclass(frozen=True)
class Settings:
    """What one run of `evaluate` was asked for."""

    conditions: tuple[str, ...] | None
    objectives: tuple[str | Objective, ...] | None
    max_prompts: int | None
    max_new_tokens: int | None
    seed: int
    split: str
    bootstrap: int
    control_prompts: int
    allow_overlap: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        asked = [item if isinstance(item, str) else f"{item.name}={item.spec}" for item in self.objectives or ()]
        return {**self.__dict__, "conditions": list(self.conditions or ()) or None, "objectives": asked or None} | {
            "margin": MARGIN,
            "temperature": 0.0,
        }


@dataclass(frozen=True)
class Evaluated:
    """One policy's metrics (JSON), and what the report and answers.jsonl need besides."""

    metrics: dict[str, Any]
    test: TestSet
    scored: list[Objective]
    answers: dict[str, Answers]
    steps: list[Step]
    swept: list[int]
