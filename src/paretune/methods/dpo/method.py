"""DPO on the mean score: chosen against rejected after the plain prompt, with the frozen base as reference.

Rafailov et al. 2023, "Direct Preference Optimization: Your Language Model is Secretly a Reward Model".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from paretune.errors import InputError
from paretune.methods.base import Method
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, Weights, branch_losses, counts
from paretune.training.config import HEADLESS, TrainConfig
from paretune.training.module import Outputs


@dataclass(frozen=True)
class DpoConfig(TrainConfig):
    """`beta`: strength of the pull to the reference; `reference_free` leaves the reference out."""

    without_effect: ClassVar[Mapping[str, str]] = HEADLESS
    lr: float = 5e-5
    batch_size: int = 16
    beta: float = 0.1
    reference_free: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta < float("inf"):
            raise InputError(f"must be above 0, found {self.beta}", field="beta")


class DpoLearner:
    """Two branches an item: chosen and rejected."""

    def __init__(self, examples: Sequence[Example], config: DpoConfig, names: Sequence[str]) -> None:
        self.examples = examples
        self.needs_reference = not config.reference_free
        self.weights = Weights(dpo=1.0, beta=config.beta)

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int, epoch: int) -> RoleItem:
        """Chosen and rejected after the plain prompt."""
        example = self.examples[index]
        item = RoleItem(example.row.id, example.prefix)
        item.preference = (item.add(example, 0, None), item.add(example, 1, None))
        return item

    def counts(self, items: Sequence[RoleItem]) -> dict[str, float]:
        """Pairs of the effective batch."""
        return counts(items)

    def loss(
        self, out: Outputs, reference: Tensor | None, items: Sequence[RoleItem], total: dict[str, float]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Mean DPO loss a pair."""
        return branch_losses(out, reference, items, total, self.weights)


METHOD = Method(
    name="dpo",
    help="direct preference optimisation on the mean score",
    config=DpoConfig,
    learner=DpoLearner,
)
