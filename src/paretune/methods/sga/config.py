"""Settings of SGA, and its presets: `paper` and `paper-sft` are the published recipe, `robust` is ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from paretune.errors import InputError
from paretune.policy.head import HeadConfig
from paretune.training.config import TrainConfig


@dataclass(frozen=True)
class SgaConfig(TrainConfig):
    """Settings of `sga` beyond the shared ones.

    weight_dpo, weight_sft, weight_conditional, weight_contrast, weight_sense: weights of the parts of the loss: DPO on
        (chosen, rejected) under the chosen completion's profile; likelihood of the chosen completion under its profile;
        likelihood of `completions` scored completions each under its own profile; profile contrast between them; and
        the sensing head's squared error.
    style, snap: the renderer's (see `paretune.policy.renderer`).
    targets: the head learns the chosen completion's scores, or the row's `wanted` profile where it has one.
    standardise: the sensing error is measured in standard deviations of the targets.
    backbone_grad_scale: how much of the head's gradient reaches the backbone (1 the paper, 0 none).
    completions, spread: scored completions of a prompt taught at one time, and how many random candidates each next one
        is chosen from (the one whose profile differs most; 1 = at random).
    unconditioned: share of rows that see the chosen completion without any profile.
    contrast_margin: completions whose profiles differ by less (mean absolute difference) are not contrasted.
    head_epochs: after joint training the head is fitted alone on the trained backbone's read-outs for this many epochs,
        keeping the epoch with the lowest validation error; 0 leaves the jointly trained head.
    """

    preset: str = "robust"
    style: Literal["scores", "levels", "instructions"] = "instructions"
    snap: Literal["none", "paper"] = "none"
    targets: Literal["chosen", "wanted"] = "chosen"
    weight_dpo: float = 0.0
    weight_sft: float = 0.0
    weight_conditional: float = 1.0
    weight_contrast: float = 1.0
    weight_sense: float = 1.0
    beta: float = 0.1
    contrast_beta: float = 0.3
    contrast_margin: float = 0.15
    reference_free: bool = False
    completions: int = 2
    spread: int = 3
    unconditioned: float = 0.1
    standardise: bool = True
    backbone_grad_scale: float = 0.2
    head_epochs: int = 40
    head_lr: float = 3e-4
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = ("weight_dpo", "weight_sft", "weight_conditional", "weight_contrast", "weight_sense")
        for name in weights:
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"must be 0 or more, found {getattr(self, name)}", field=name)
        if not any(getattr(self, name) for name in weights[:4]):
            raise InputError(
                "at least one of weight_dpo, weight_sft, weight_conditional, weight_contrast must be above 0"
            )
        for name in ("beta", "contrast_beta", "head_lr", "completions", "spread"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"must be above 0, found {getattr(self, name)}", field=name)
        for name in ("unconditioned", "backbone_grad_scale", "contrast_margin"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"must lie in [0, 1], found {getattr(self, name)}", field=name)
        if self.head_epochs < 0:
            raise InputError(f"must be 0 or more, found {self.head_epochs}", field="head_epochs")


_PAPER: dict[str, Any] = {
    "style": "scores",
    "snap": "paper",
    "targets": "chosen",
    "weight_dpo": 1.0,
    "weight_sft": 0.0,
    "weight_conditional": 0.0,
    "weight_contrast": 0.0,
    "weight_sense": 1000.0,
    "beta": 0.1,
    "unconditioned": 0.0,
    "standardise": False,
    "backbone_grad_scale": 1.0,
    "head_epochs": 0,
    "head": {"width": 1024, "depth": 3, "dropout": 0.1, "input_norm": False},
    "epochs": 2,
    "batch_size": 64,
    "max_length": 1024,
    "lr": 1e-5,
    "lr_head": 0.0,
    "schedule": "cosine",
    "warmup_steps": 0,
    "betas": (0.95, 0.95),
    "weight_decay": 0.0,
    "clip": 5.0,
    "dtype": "bfloat16",
    "lora_r": 32,
    "lora_alpha": 64,
    "lora_dropout": 0.05,
    "lora_layers": 0,
    "scale": "sigmoid",
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "paper-sft": {**_PAPER, "weight_dpo": 0.0, "weight_sft": 1.0},
    "robust": {
        "epochs": 2,
        "batch_size": 8,
        "lr": 1e-3,
        "lr_head": 3e-4,
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "betas": (0.9, 0.99),
        "clip": 1.0,
        "head": {"width": 1024, "depth": 3, "dropout": 0.1, "input_norm": True},
    },
}
"""The paper's scores lie in [0, 1] by one of two maps: rating data by fixed bounds (`--set scale=fixed`, after
(s-1)/4 or s/4), reward-model scores by z-score and sigmoid, which `paper` uses."""
