"""Steering: the user's values, or a direction, in the prompt; likelihood alone.

condition=values: scored completions, each under its own values. Dong et al., "SteerLM: Attribute Conditioned SFT as an
(User-Steerable) Alternative to RLHF", Findings of EMNLP 2023.
condition=direction: the completion that is best in a drawn direction, under that direction. Wang et al., "Arithmetic
Control of LLMs for Diverse User Preferences: Directional Preference Alignment with Multi-Objective Rewards", ACL 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paretune.errors import InputError
from paretune.methods.base import Method
from paretune.methods.conditioned import Directions, LikelihoodConfig, OwnValues
from paretune.methods.examples import Example
from paretune.policy.renderer import Style
from paretune.policy.weights import Rule


@dataclass(frozen=True)
class SteerConfig(LikelihoodConfig):
    """`condition`: what stands in the prompt, `values` or the weights of a `direction`; `completions`: completions, or
    directions, of a prompt taught at one time."""

    condition: Literal["values", "direction"] = "values"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.completions < 1:
            raise InputError(f"must be at least 1, found {self.completions}", field="completions")

    @property
    def style(self) -> Style:
        """How the condition is written."""
        return "weights" if self.condition == "direction" else "scores"

    @property
    def weights_rule(self) -> Rule:
        """How preference weights are taken."""
        return "direction" if self.condition == "direction" else "profile"


def learner(examples: Sequence[Example], config: SteerConfig, names: Sequence[str]) -> OwnValues:
    """The learner of the condition."""
    kind = Directions if config.condition == "direction" else OwnValues
    return kind(examples, config, names)


METHOD = Method(
    name="steer",
    help="values (SteerLM) or a direction (DPA) in the prompt, taught by likelihood; the user gives them",
    config=SteerConfig,
    learner=learner,
    pairs=False,
    conditions=True,
    weights="profile",
    presets={"default": {}},
    default_preset="default",
)
