"""SFT: mean negative log-likelihood of the chosen completion's tokens, nothing rendered into the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from paretune.methods.base import Method
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, Weights, branch_losses, counts
from paretune.training.config import HEADLESS, TrainConfig
from paretune.training.module import Outputs


@dataclass(frozen=True)
class SftConfig(TrainConfig):
    """The shared settings with a learning rate that suits likelihood training of an adapter."""

    without_effect: ClassVar[Mapping[str, str]] = HEADLESS
    lr: float = 2e-4
    batch_size: int = 16


class SftLearner:
    """One branch an item: the chosen completion."""

    needs_reference = False

    def __init__(self, examples: Sequence[Example], config: TrainConfig, names: Sequence[str]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int, epoch: int) -> RoleItem:
        """The chosen completion after the plain prompt."""
        example = self.examples[index]
        item = RoleItem(example.row.id, example.prefix)
        item.likelihood.append(item.add(example, 0, None))
        return item

    def counts(self, items: Sequence[RoleItem]) -> dict[str, float]:
        """Label tokens of the effective batch."""
        return counts(items)

    def loss(
        self, out: Outputs, reference: Tensor | None, items: Sequence[RoleItem], total: dict[str, float]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Mean negative log-likelihood a token."""
        return branch_losses(out, None, items, total, Weights(likelihood=1.0))


METHOD = Method(
    name="sft",
    help="supervised fine-tuning on the chosen completion",
    config=SftConfig,
    learner=SftLearner,
    pairs=False,
)
