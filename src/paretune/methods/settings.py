"""Settings that every method with a sensing head shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paretune.data.targets import Targets
from paretune.errors import InputError
from paretune.policy.head import HeadConfig
from paretune.training.config import TrainConfig


@dataclass(frozen=True)
class SensingConfig(TrainConfig):
    """Settings of the head and of what it learns.

    targets, top_k: what the head learns: the scores of the chosen completion, the row's `wanted` profile where it has
        one, or those of several good completions (see `paretune.data.targets`).
    standardise: the sensing error is measured in standard deviations of the targets.
    backbone_grad_scale: how much of the head's gradient reaches the backbone (1 the paper, 0 none).
    head_warmup: epochs for which the head is fitted alone on the base model's read-outs before joint training.
    head_epochs: after joint training the head is fitted alone on the trained backbone's read-outs for at most this many
        epochs, and its intervals are calibrated; 0 leaves the jointly trained head, without intervals.
    head_lr: learning rate of both.
    """

    senses_weights: ClassVar[bool] = False
    """Does the method's head sense weights (kind `simplex`) in place of values?"""
    targets: Targets = "chosen"
    top_k: int = 3
    standardise: bool = True
    backbone_grad_scale: float = 0.0
    head_warmup: int = 0
    head_epochs: int = 30
    head_lr: float = 1e-3
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.head.kind == "simplex") != self.senses_weights:
            wanted = "simplex" if self.senses_weights else "one that senses values"
            raise InputError(f"must be {wanted} for this method, found {self.head.kind}", field="head.kind")
        for name in ("head_lr", "top_k"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"must be above 0, found {getattr(self, name)}", field=name)
        if not 0 <= self.backbone_grad_scale <= 1:
            raise InputError(f"must lie in [0, 1], found {self.backbone_grad_scale}", field="backbone_grad_scale")
        for name in ("head_epochs", "head_warmup"):
            if not 0 <= getattr(self, name) <= 10_000:
                raise InputError(f"must lie between 0 and 10000, found {getattr(self, name)}", field=name)
