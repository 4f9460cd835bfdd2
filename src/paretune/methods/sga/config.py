"""Settings of SGA, and its presets: `paper` and `paper-sft` are the published recipe, `robust` is ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from paretune.errors import InputError
from paretune.methods.settings import SensingConfig


@dataclass(frozen=True)
class SgaConfig(SensingConfig):
    """Settings of `sga` beyond the shared ones and the head's.

    weight_dpo, weight_sft, weight_conditional, weight_contrast, weight_sense: weights of the parts of the loss: DPO on
        (chosen, rejected) under the chosen completion's profile; likelihood of the chosen completion under its profile;
        likelihood of `completions` scored completions each under its own profile; profile contrast between them; and
        the sensing head's squared error.
    style, snap: the renderer's (see `paretune.policy.renderer`).
    request_rejected: share of preference pairs that ask for the *rejected* completion's profile; the completion nearer
        to the request wins (CPO's idea: match the profile, not "be chosen").
    sft_epochs: the first epochs teach by conditional likelihood of scored completions alone (a stage before the rest).
    sensed_share: scheduled sampling: the share of rows conditioned on what is sensed, growing from 0 to this over the
        first half of training. The profile is one that a head which never saw the row predicts, rendered as at
        inference.
    jitter: noise on the other rows' own profiles, as a multiple of the sensing residual's spread (1 = as large).
    completions, spread: scored completions of a prompt taught at one time, and how many random candidates each next one
        is chosen from (1 = at random).
    partners: each next one is the candidate that differs most in its whole `profile`, or in one `objective`, which is
        drawn anew for each, so that no objective that varies little is left to chance.
    unconditioned: share of rows that see the chosen completion without any profile.
    contrast_margin: completions whose profiles differ by less (mean absolute difference) are not contrasted.
    """

    preset: str = "robust"
    style: Literal["scores", "levels", "instructions"] = "instructions"
    snap: Literal["none", "paper"] = "none"
    weight_dpo: float = 0.0
    weight_sft: float = 0.0
    weight_conditional: float = 1.0
    weight_contrast: float = 2.0
    weight_sense: float = 1.0
    beta: float = 0.1
    contrast_beta: float = 0.3
    contrast_margin: float = 0.15
    reference_free: bool = False
    completions: int = 2
    spread: int = 4
    partners: Literal["profile", "objective"] = "objective"
    unconditioned: float = 0.1
    request_rejected: float = 0.0
    sft_epochs: int = 0
    sensed_share: float = 0.0
    jitter: float = 0.0

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
        for name in ("beta", "contrast_beta", "completions", "spread"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"must be above 0, found {getattr(self, name)}", field=name)
        for name in ("unconditioned", "contrast_margin", "request_rejected", "sensed_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"must lie in [0, 1], found {getattr(self, name)}", field=name)
        for name in ("sft_epochs", "jitter"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"must be 0 or more, found {getattr(self, name)}", field=name)
        if self.sft_epochs >= self.epochs:
            raise InputError(f"must be less than epochs={self.epochs}, found {self.sft_epochs}", field="sft_epochs")
        for name in ("sensed_share", "jitter"):
            if getattr(self, name) and not self.head_warmup:
                raise InputError("needs a head that has been fitted: set head_warmup too (30, say)", field=name)
        if self.request_rejected and not self.weight_dpo:
            raise InputError("concerns preference pairs, which weight_dpo=0 leaves out", field="request_rejected")


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
    "head": {"kind": "regression", "width": 1024, "depth": 3, "dropout": 0.1, "readout": "last", "layer": 1.0},
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
        "head": {
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
"""The paper's scores lie in [0, 1] by one of two maps: rating data by fixed bounds (`--set scale=fixed`, after
(s-1)/4 or s/4), reward-model scores by z-score and sigmoid, which `paper` uses."""
