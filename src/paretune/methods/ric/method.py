"""RiC: likelihood of scored completions after `<rm1_score> z1 <rm2_score> z2 ...`, each under its own z-scores.

Yang et al., "Rewards-in-Context: Multi-objective Alignment of Foundation Models with Dynamic Preference
Adjustment", ICML 2024: the offline stage. The markers stand at the end of the user's message, where every profile
stands, and not after the prompt's last token; the z-scores are of the values in [0, 1] that the scales make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from paretune.methods.base import Method
from paretune.methods.conditioned import LikelihoodConfig, OwnValues


@dataclass(frozen=True)
class RicConfig(LikelihoodConfig):
    """`completions`: scored completions of a prompt taught at one time, drawn anew each epoch; 0: all of them."""

    style: ClassVar[str] = "ric"


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "completions": 0,
        "scale": "zscore",
        "epochs": 1,
        "batch_size": 8,
        "lr": 1.414e-4,
        "schedule": "linear",
        "betas": (0.9, 0.999),
        "weight_decay": 0.01,
        "clip": 1.0,
        "dtype": "bfloat16",
        "lora_r": 64,
        "lora_alpha": 128,
        "lora_dropout": 0.05,
    },
}
"""`paper`: the settings of the released training script (YangRui2015/RiC); it counts 20,000 steps of one row a process
in place of epochs, and its eight processes are our guess."""

METHOD = Method(
    name="ric",
    help="rewards in context: scored completions taught under their own z-scores in the prompt",
    config=RicConfig,
    learner=OwnValues,
    pairs=False,
    conditions=True,
    weights="profile",
    ends=(0.0, 1.0),
    presets=PRESETS,
    default_preset="default",
)
