"""SGA: the loss of the sensing head joined with conditioned preference and likelihood losses.

Wang et al., "Self-Guided Alignment", ACL 2026. The preset `paper` is L = DPO + 1000 * MSE, where both completions are
conditioned on the chosen one's scores and the head reads the raw prompt's last token. What goes beyond it is named in
`SgaConfig`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from paretune.methods.base import Method
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, Weights, branch_losses, counts, sensing_loss
from paretune.methods.requests import SensedRows, profile_distance
from paretune.methods.sga.config import PRESETS, SgaConfig
from paretune.policy.head import SensingHead
from paretune.profile import Profile
from paretune.training.module import Outputs


class SgaLearner:
    """Builds an item's branches by the weights that are on; the head's targets ride along."""

    head: SensingHead | None = None
    """Set by the pipeline, which owns the module."""
    sensed: SensedRows | None = None
    """Set by the pipeline after the head's warm-up."""

    def __init__(self, examples: Sequence[Example], config: SgaConfig, names: Sequence[str]) -> None:
        self.examples = examples
        self.config = config
        self.names = names
        self.needs_reference = config.weight_dpo > 0 and not config.reference_free
        self.weights = Weights(
            dpo=config.weight_dpo,
            likelihood=config.weight_sft + config.weight_conditional,
            contrast=config.weight_contrast,
            sense=config.weight_sense,
            beta=config.beta,
            contrast_beta=config.contrast_beta,
        )

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int, epoch: int) -> RoleItem:
        """The branches of a prompt in an epoch; draws are keyed by (seed, epoch, row)."""
        example, config = self.examples[index], self.config
        draw = random.Random(f"{config.seed}:{epoch}:{example.row.id}:sga")
        nothing = draw.random() < config.unconditioned
        sensed = None if nothing else self._sensed(example, index, epoch)
        item = RoleItem(example.row.id, example.prefix, span=example.span)
        item.goods = [[good.get(name, math.nan) for name in self.names] for good in example.goods]
        if epoch < config.sft_epochs:
            self._add_answers(item, example, epoch, draw, nothing, sensed, stage=True)
            return item
        condition = None if nothing else sensed if sensed is not None else self._own(example, 0, epoch)
        if config.weight_dpo:
            self._add_pair(item, example, epoch, condition, plain=nothing or sensed is not None)
        if config.weight_sft:
            item.likelihood.append(item.add(example, 0, condition))
        if config.weight_conditional or config.weight_contrast:
            self._add_answers(item, example, epoch, draw, nothing, sensed)
        return item

    def _sensed(self, example: Example, index: int, epoch: int) -> Profile | None:
        """What the row is sensed to want, where scheduled sampling chooses it, as inference would render it."""
        if self.sensed is None or not self.config.sensed_share:
            return None
        draw = random.Random(f"{self.config.seed}:{epoch}:{example.row.id}:sensed")
        done = (epoch + draw.random()) / self.config.epochs  # where in training a row comes, on average
        if draw.random() >= self.config.sensed_share * min(1.0, 2 * done):
            return None
        return example.renderer.snapped(self.sensed.profiles[index])

    def _own(self, example: Example, answer: int, epoch: int) -> Profile:
        """An answer's own profile, blurred where `jitter` is on: once an epoch, the same in every role."""
        profile = example.answers[answer].profile
        if self.sensed is None or not self.config.jitter:
            return profile
        draw = random.Random(f"{self.config.seed}:{epoch}:{example.row.id}:jitter:{answer}")
        return self.sensed.blurred(profile, self.config.jitter, draw)

    def _add_pair(
        self, item: RoleItem, example: Example, epoch: int, condition: Profile | None, *, plain: bool
    ) -> None:
        """Chosen against rejected under one request; under the rejected one's own profile it is the one that wins."""
        draw = random.Random(f"{self.config.seed}:{epoch}:{example.row.id}:request")
        winner = 0
        if not plain and draw.random() < self.config.request_rejected:
            own = [example.answers[i].profile for i in (0, 1)]
            winner = int(profile_distance(own[1], own[0]) > 0)
            condition = self._own(example, 1, epoch) if winner else condition
        item.preference = (item.add(example, winner, condition), item.add(example, 1 - winner, condition))

    def _add_answers(
        self,
        item: RoleItem,
        example: Example,
        epoch: int,
        draw: random.Random,
        nothing: bool,
        sensed: Profile | None,
        *,
        stage: bool = False,
    ) -> None:
        """Several scored completions, each under its own profile; neighbours are contrasted.

        A row without a condition teaches the chosen completion in the first one's place, and one conditioned on what
        is sensed the completion nearest to that. `stage`: likelihood alone, whatever the weights are.
        """
        config = self.config
        picked = self._pick(example, draw)
        own = {i: self._own(example, i, epoch) for i in picked}
        if config.weight_conditional or stage:
            first = nothing or sensed is not None
            if nothing:
                item.likelihood.append(item.add(example, 0, None))
            elif sensed is not None:
                item.likelihood.append(item.add(example, _nearest(example, sensed), sensed))
            item.likelihood += [item.add(example, i, own[i]) for i in picked[int(first) :]]
        if not config.weight_contrast or stage:
            return
        for one, two in zip(picked, picked[1:] + picked[:1], strict=True):
            if profile_distance(own[one], own[two]) >= config.contrast_margin:
                item.contrast.append((item.add(example, one, own[one]), item.add(example, one, own[two])))

    def _pick(self, example: Example, draw: random.Random) -> list[int]:
        """`completions` different answers: the first at random, each next the farthest from the one before of `spread`
        random candidates, in its profile or in one objective."""
        left = list(range(len(example.answers)))
        draw.shuffle(left)
        picked = [left.pop()]
        while left and len(picked) < self.config.completions:
            before = example.answers[picked[-1]].profile
            candidates = left[-self.config.spread :]
            if self.config.partners == "objective":
                name = draw.choice(self.names)
                before = {name: before[name]} if name in before else before
            best = max(candidates, key=lambda i: profile_distance(example.answers[i].profile, before))
            left.remove(best)
            picked.append(best)
        return picked

    def counts(self, items: Sequence[RoleItem]) -> dict[str, float]:
        """Denominators of the effective batch."""
        return counts(items)

    def loss(
        self, out: Outputs, reference: Tensor | None, items: Sequence[RoleItem], total: dict[str, float]
    ) -> tuple[Tensor, dict[str, Any]]:
        """The weighted parts; `sense` is logged as the head's own loss."""
        weights = self.weights
        loss, logged = branch_losses(out, reference, items, total, weights)
        assert self.head is not None
        standardise = self.config.standardise
        sensing, told = sensing_loss(self.head, out, items, total, weight=weights.sense, standardise=standardise)
        return loss + sensing, logged | told


def _nearest(example: Example, profile: Profile) -> int:
    """The answer whose profile is nearest; the chosen one where several are."""
    return min(range(len(example.answers)), key=lambda i: profile_distance(example.answers[i].profile, profile))


METHOD = Method(
    name="sga",
    help="self-guided alignment: senses a profile from the prompt and is guided by it",
    config=SgaConfig,
    learner=SgaLearner,
    senses=True,
    conditions=True,
    weights="profile",
    presets=PRESETS,
    default_preset="robust",
)
