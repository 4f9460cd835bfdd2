"""Settings of `grpo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from paretune.data.views import weighted
from paretune.errors import InputError
from paretune.training.config import HEADLESS, TrainConfig

NO_PAIRS = "grpo makes no pairs; what each objective counts is said by weights"
NO_CHECKPOINTS = "grpo saves no checkpoints and cannot be resumed"


@dataclass(frozen=True)
class GrpoConfig(TrainConfig):
    """What is sampled, how rewards become advantages, and the pull to the base model.

    num_generations: answers sampled to every prompt, a group. max_completion_length: tokens an answer may take.
    temperature: of sampling and of the log-probabilities that are trained.
    aggregation: how several rewards make one advantage. `normalize_then_sum` standardises each reward within its group,
        then sums by weight (GDPO, Liu et al. 2026); `sum_then_normalize` sums by weight first (GRPO, Shao et al. 2024).
    weights: how much each objective counts; none given, all count the same, and those left out count 0.
    beta: weight of the KL divergence from the base model, 0 to leave it out.
    """

    without_effect: ClassVar[Mapping[str, str]] = HEADLESS | {
        "pairs": NO_PAIRS,
        "pair_margin": NO_PAIRS,
        "max_tokens": "nobody knows how long the answers will be; set max_steps",
        "nonfinite": "TRL's trainer takes the steps",
        "save_every": NO_CHECKPOINTS,
        "keep": NO_CHECKPOINTS,
    }
    epochs: int = 1
    batch_size: int = 8
    lr: float = 5e-5
    num_generations: int = 8
    max_completion_length: int = 128
    temperature: float = 1.0
    aggregation: Literal["normalize_then_sum", "sum_then_normalize"] = "normalize_then_sum"
    weights: dict[str, float] = field(default_factory=dict)
    beta: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_generations < 2:
            raise InputError(
                f"must be 2 or more, found {self.num_generations}: answers are compared with others to the same prompt",
                field="num_generations",
            )
        for name in ("max_completion_length", "temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"must be above 0, found {getattr(self, name)}", field=name)
        if not 0 <= self.beta < float("inf"):
            raise InputError(f"must be 0 or more, found {self.beta}", field="beta")
        if self.weights:
            try:
                weighted(dict.fromkeys(self.weights, 0.0), self.weights)
            except InputError as error:
                raise InputError(error.message, field="weights") from None
