"""What one run of `evaluate` was asked for, and what it found for one policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paretune.bootstrap import Floats
from paretune.evaluation.control import Step
from paretune.evaluation.scoring import Scored
from paretune.evaluation.summary import Answers
from paretune.evaluation.sweeps import Point, in_text
from paretune.evaluation.testset import TestSet
from paretune.evaluation.winrate import MARGIN
from paretune.profile import Objective, Profile


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
    weights: tuple[Any, ...] | None = None
    profiles: tuple[Any, ...] | None = None
    reference: Mapping[str, float] | None = None
    judge_with: tuple[str, ...] | None = None
    include_base: bool = False
    card: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON form: wishes as the command line takes them."""
        asked = [item if isinstance(item, str) else f"{item.name}={item.spec}" for item in self.objectives or ()]
        return {
            **self.__dict__,
            "conditions": list(self.conditions or ()) or None,
            "objectives": asked or None,
            "weights": _texts(self.weights),
            "profiles": _texts(self.profiles),
            "reference": [f"{name}={value:g}" for name, value in (self.reference or {}).items()] or None,
            "judge_with": list(self.judge_with or ()) or None,
            "margin": MARGIN,
            "temperature": 0.0,
        }


def _texts(asked: tuple[Any, ...] | None) -> list[str] | None:
    return [in_text(each) if isinstance(each, Mapping) else str(each) for each in asked or ()] or None


@dataclass(frozen=True)
class Evaluated:
    """One policy's metrics (JSON), and what the comparison, the report and answers.jsonl need besides.

    `natural` is the condition of its natural answers, `points` its sweep, `chosen` [n, m] the normalised values of the
    data's chosen completions for its scored objectives, `wished` the targets in terms of what it senses.
    """

    metrics: dict[str, Any]
    test: TestSet
    scored: list[Objective]
    answers: dict[str, Answers]
    steps: list[Step]
    swept: list[int]
    natural: str
    chosen: Floats
    wished: list[Profile]
    points: list[Point] = field(default_factory=list)

    @property
    def natural_answers(self) -> Scored:
        """The answers under the natural condition."""
        return self.answers[self.natural].scored

    @property
    def further_points(self) -> list[Point]:
        """The sweep without the point that is the natural condition itself."""
        return [point for point in self.points if point.scored is not self.natural_answers]
