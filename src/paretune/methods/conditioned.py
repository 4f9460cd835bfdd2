"""Learners of conditioned likelihood: completions under their own values, or the best under drawn weights.

What `ric`, `steer` and `pro` have in common. Every draw is keyed by (seed, epoch, row).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from paretune.errors import InputError
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, Weights, branch_losses, counts, scored_answers
from paretune.profile import Profile
from paretune.training.config import HEADLESS, TrainConfig
from paretune.training.module import Outputs


@dataclass(frozen=True)
class LikelihoodConfig(TrainConfig):
    """The shared settings with a learning rate that suits likelihood training of an adapter.

    completions: how many completions of a prompt are taught at one time, drawn anew each epoch.
    """

    without_effect: ClassVar[Mapping[str, str]] = HEADLESS
    preset: str = "default"
    lr: float = 2e-4
    batch_size: int = 16
    completions: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.completions < 0:
            raise InputError(f"must be 0 or more, found {self.completions}", field="completions")


class OwnValues:
    """Likelihood of a prompt's scored completions, each under its own values: -mean log p(token | x, s_y).

    `config.completions` of them are drawn a prompt and epoch, all of them where it is 0. Rows without any are left out.
    """

    needs_reference = False

    def __init__(self, examples: Sequence[Example], config: Any, names: Sequence[str]) -> None:
        self.examples = [each for each in examples if scored_answers(each)]
        self.config = config

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int, epoch: int) -> RoleItem:
        """Completions drawn from those with scores, each after its own rendered values."""
        example = self.examples[index]
        draw = random.Random(f"{self.config.seed}:{epoch}:{example.row.id}:own")
        known = scored_answers(example)
        item = RoleItem(example.row.id, example.prefix)
        for i in draw.sample(known, min(self.config.completions or len(known), len(known))):
            item.likelihood.append(item.add(example, i, example.answers[i].profile))
        return item

    def counts(self, items: Sequence[RoleItem]) -> dict[str, float]:
        """Label tokens of the effective batch."""
        return counts(items)

    def loss(
        self, out: Outputs, reference: Tensor | None, items: Sequence[RoleItem], total: dict[str, float]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Mean negative log-likelihood a token."""
        return branch_losses(out, None, items, total, Weights(likelihood=1.0))


class Directions(OwnValues):
    """Likelihood of the best completion under drawn weights: -mean log p(token | x, w), y = argmax_y sum_i v_i s_i(y).

    v is a unit direction, uniform on the positive orthant of the sphere, s_i(y) a completion's value in [0, 1], and
    w = v / |v|_1 is what is rendered. `config.completions` directions are drawn a prompt and epoch. Completions that
    miss a score take no part, and rows without any other are left out.
    """

    def __init__(self, examples: Sequence[Example], config: Any, names: Sequence[str]) -> None:
        super().__init__(examples, config, names)
        self.names = list(names)
        self.examples = [each for each in examples if scored_answers(each, self.names)]

    def item(self, index: int, epoch: int) -> RoleItem:
        """For each drawn direction the completion that is best in it, after the rendered weights."""
        example = self.examples[index]
        draw = random.Random(f"{self.config.seed}:{epoch}:{example.row.id}:direction")
        item = RoleItem(example.row.id, example.prefix, span=example.span)
        for _ in range(self.config.completions):
            weights = drawn_weights(self.names, draw)
            branch = item.add(example, best_under(example, weights), weights)
            if branch not in item.likelihood:  # two directions may be rendered alike
                item.likelihood.append(branch)
        return item


def drawn_weights(names: Sequence[str], draw: random.Random) -> Profile:
    """A unit direction of the positive orthant, uniform on the sphere, made to sum to one."""
    direction = [abs(draw.gauss(0.0, 1.0)) for _ in names]
    total = sum(direction)
    return {name: value / total for name, value in zip(names, direction, strict=True)}


def best_under(example: Example, weights: Profile) -> int:
    """The completion with the highest sum of weighted values; the first of several."""
    known = scored_answers(example, list(weights))
    return max(known, key=lambda i: sum(weights[name] * example.answers[i].profile[name] for name in weights))
