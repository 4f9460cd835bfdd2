"""Pro: a head senses from the prompt how much each objective counts, and a generator follows weights in the prompt.

Liu et al., "Preference Orchestrator: Prompt-Aware Multi-Objective Alignment for Large Language Models", arXiv
2511.10656. The head's target is softmax(values of the preferred completion / temperature), its loss the KL divergence
of what it predicts from that. The generator is the one of `steer` under condition=direction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from paretune.errors import InputError
from paretune.methods.base import Method
from paretune.methods.conditioned import Directions
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, Weights, branch_losses, sensing_loss
from paretune.methods.requests import SensedRows
from paretune.methods.settings import SensingConfig
from paretune.policy.head import HeadConfig, SensingHead
from paretune.policy.weights import TEMPERATURE
from paretune.training.module import Outputs


@dataclass(frozen=True)
class ProConfig(SensingConfig):
    """Settings of `pro` beyond the shared ones and the head's.

    completions: directions of a prompt taught at one time, drawn anew each epoch.
    weight_sense: weight of the head's loss in joint training.
    weight_temperature: of the softmax that makes target weights of values; the smaller, the more the strongest counts.
    """

    style: ClassVar[str] = "weights"
    senses_weights: ClassVar[bool] = True
    preset: str = "default"
    lr: float = 2e-4
    batch_size: int = 16
    completions: int = 2
    weight_sense: float = 1.0
    weight_temperature: float = TEMPERATURE
    head: HeadConfig = field(default_factory=lambda: HeadConfig(kind="simplex"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.completions < 1:
            raise InputError(f"must be at least 1, found {self.completions}", field="completions")
        if not 0 <= self.weight_sense < float("inf"):
            raise InputError(f"must be 0 or more, found {self.weight_sense}", field="weight_sense")
        if not 0 < self.weight_temperature < float("inf"):
            raise InputError(f"must be above 0, found {self.weight_temperature}", field="weight_temperature")


class ProLearner(Directions):
    """The branches of `Directions`; the head's target weights ride along."""

    head: SensingHead | None = None
    """Set by the pipeline, which owns the module."""
    sensed: SensedRows | None = None
    """Set by the pipeline after the head's warm-up; the generator is not conditioned on it."""

    def __init__(self, examples: Sequence[Example], config: ProConfig, names: Sequence[str]) -> None:
        super().__init__(examples, config, names)
        self.weights = Weights(likelihood=1.0, sense=config.weight_sense)

    def item(self, index: int, epoch: int) -> RoleItem:
        """The best completion in each drawn direction, and the weights that the head should sense."""
        item = super().item(index, epoch)
        goods = self.examples[index].goods
        item.goods = [[good.get(name, math.nan) for name in self.names] for good in goods]
        return item

    def loss(
        self, out: Outputs, reference: Tensor | None, items: Sequence[RoleItem], total: dict[str, float]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Mean negative log-likelihood a token, and the weighted mean divergence of the head a prompt."""
        loss, logged = branch_losses(out, None, items, total, self.weights)
        assert self.head is not None
        sensing, told = sensing_loss(self.head, out, items, total, weight=self.weights.sense, standardise=False)
        return loss + sensing, logged | told


PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "head": {
            "kind": "simplex",
            "width": 256,
            "depth": 2,
            "dropout": 0.3,
            "hidden_dropout": 0.3,
            "standardise_input": True,
            "skip": True,
            "readout": "mean",
            "layer": 0.667,
        },
    },
}
"""The head is the one of `sga`'s `robust`: what differs between the two is what it senses."""

METHOD = Method(
    name="pro",
    help="preference orchestrator: senses from the prompt how much each objective counts, and is guided by it",
    config=ProConfig,
    learner=ProLearner,
    senses=True,
    pairs=False,
    conditions=True,
    weights="direction",
    presets=PRESETS,
    default_preset="default",
)
