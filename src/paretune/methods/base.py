"""What a method is: a name, a line of help, its settings with presets, and how it makes a learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paretune.methods.examples import Example
from paretune.policy.weights import Rule
from paretune.training.config import TrainConfig
from paretune.training.loop import Learner

if TYPE_CHECKING:
    from paretune.methods.setup import Fitted, Setup


@dataclass(frozen=True)
class Method:
    """A way to train a policy; `registry.register` makes it known to the CLI and to `paretune.train`.

    `learner(examples, config)` gives what the loop needs. `senses`: it trains a sensing head. `pairs`: it needs a
    rejected completion beside the chosen one. `conditions`: it needs scores, and renders profiles. `weights`: the rule
    by which its policies take preference weights. `fit`: how it trains, where that is not one adapter in the shared
    loop (`paretune.methods.setup.fit_one`).
    """

    name: str
    help: str
    config: type[TrainConfig]
    learner: Callable[[Sequence[Example], Any, Sequence[str]], Learner[Any]]
    senses: bool = False
    pairs: bool = True
    conditions: bool = False
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default_preset: str = ""
    weights: Rule | None = None
    fit: Callable[[Setup], Fitted] | None = None
