"""The module that trains: backbone with LoRA and the reward head, one pass over packed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from paretune.policy.packed import Batch, end_states
from paretune.reward_model.head import RewardHead
from paretune.training.module import AdapterModule


@dataclass(frozen=True)
class Rewards:
    """raw [K, M]: the head's output for each branch."""

    raw: Tensor


class RewardModule(AdapterModule):
    """What the loop trains, and what scores afterwards."""

    head: RewardHead

    def __init__(self, peft: Any, head: RewardHead) -> None:
        super().__init__(peft, head)

    def forward(self, batch: Batch) -> Rewards:
        """Raw rewards of all branches."""
        return Rewards(self.head(end_states(self.causal, batch)))
