"""What a method is: a name, a line of help, its settings with presets, and how it makes a learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paretune.methods.examples import Example
from paretune.policy.renderer import Renderer
from paretune.policy.weights import Rule
from paretune.training.config import TrainConfig
from paretune.training.loop import Learner

if TYPE_CHECKING:
    from paretune.methods.prepare import Encoded, Prepared
    from paretune.methods.setup import Fitted, Setup


@dataclass(frozen=True)
class Method:
    """A way to train a policy; `registry.register` makes it known to the CLI and to `paretune.train`.

    `learner(examples, config)` gives what the loop needs, where it trains in the loop. `senses`: it trains a sensing
    head. `pairs`: it needs a rejected completion beside the chosen one. `conditions`: it needs scores, and renders
    profiles. `weights`: the rule by which its policies take preference weights, where its settings do not decide it (as
    `weights_rule`). `ends`: the quantiles of the training values between which the rule `profile` asks. `fit`: how it
    trains, where that is not one adapter in the shared loop (`paretune.methods.setup.fit_one`).
    `encode(config, prepared, renderer, context, strict)`: its examples, where they are not made of pairs
    by the rule of the settings.
    """

    name: str
    help: str
    config: type[TrainConfig]
    learner: Callable[[Sequence[Example], Any, Sequence[str]], Learner[Any]] | None = None
    senses: bool = False
    pairs: bool = True
    conditions: bool = False
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default_preset: str = ""
    weights: Rule | None = None
    ends: tuple[float, float] = (0.05, 0.95)
    fit: Callable[[Setup], Fitted] | None = None
    encode: Callable[[Any, Prepared, Renderer, int, bool], Encoded] | None = None
