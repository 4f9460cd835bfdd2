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

import torch
from torch import Tensor

from paretune.methods.base import Method
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, Weights, branch_losses, counts
from paretune.methods.sga.config import PRESETS, SgaConfig
from paretune.policy.head import SensingHead
from paretune.profile import Profile
from paretune.training.module import Outputs


class SgaLearner:
    """Builds an item's branches by the weights that are on; the head's targets ride along."""

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
        self.head: SensingHead | None = None  # set by the pipeline, which owns the module

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int, epoch: int) -> RoleItem:
        """The branches of a prompt in an epoch; draws are keyed by (seed, epoch, row)."""
        example, config = self.examples[index], self.config
        draw = random.Random(f"{config.seed}:{epoch}:{example.row.id}:sga")
        nothing = draw.random() < config.unconditioned
        item = RoleItem(example.row.id, example.prefix)
        item.target = [example.target.get(name, math.nan) for name in self.names]
        condition = None if nothing else example.answers[0].profile
        if config.weight_dpo:
            item.preference = (item.add(example, 0, condition), item.add(example, 1, condition))
        if config.weight_sft:
            item.likelihood.append(item.add(example, 0, condition))
        if config.weight_conditional or config.weight_contrast:
            self._add_answers(item, example, draw, nothing)
        return item

    def _add_answers(self, item: RoleItem, example: Example, draw: random.Random, nothing: bool) -> None:
        """Several scored completions, each under its own profile; neighbours are contrasted."""
        config = self.config
        picked = self._pick(example, draw)
        if config.weight_conditional:
            if nothing:
                item.likelihood.append(item.add(example, 0, None))
            item.likelihood += [item.add(example, i, example.answers[i].profile) for i in picked[int(nothing) :]]
        if not config.weight_contrast:
            return
        for one, two in zip(picked, picked[1:] + picked[:1], strict=True):
            own, other = example.answers[one].profile, example.answers[two].profile
            if profile_distance(own, other) >= config.contrast_margin:
                item.contrast.append((item.add(example, one, own), item.add(example, one, other)))

    def _pick(self, example: Example, draw: random.Random) -> list[int]:
        """`completions` different answers: the first at random, each next the farthest in profile from the one before,
        of `spread` random candidates."""
        left = list(range(len(example.answers)))
        draw.shuffle(left)
        picked = [left.pop()]
        while left and len(picked) < self.config.completions:
            before = example.answers[picked[-1]].profile
            candidates = left[-self.config.spread :]
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
        """The weighted parts; `sense` is logged as the plain or standardised squared error it is."""
        loss, logged = branch_losses(out, reference, items, total, self.weights)
        if out.predicted is None or not self.weights.sense or not total["sense"]:
            return loss, logged
        assert self.head is not None
        target = torch.tensor([item.target for item in items], dtype=torch.float32, device=out.predicted.device)
        present = (~torch.isnan(target)).sum()
        # the head's loss is a mean over these items' present targets; its share of the effective batch's:
        value = self.head.loss(out.predicted, target, standardise=self.config.standardise) * (present / total["sense"])
        logged["sense"] = float(value.detach())
        return loss + self.weights.sense * value, logged


def profile_distance(one: Profile, two: Profile) -> float:
    """Mean absolute difference over the objectives both have; 0 when they share none."""
    shared = [name for name in one if name in two]
    return sum(abs(one[name] - two[name]) for name in shared) / len(shared) if shared else 0.0


METHOD = Method(
    name="sga",
    help="self-guided alignment: senses a profile from the prompt and is guided by it",
    config=SgaConfig,
    learner=SgaLearner,
    senses=True,
    conditions=True,
    presets=PRESETS,
    default_preset="robust",
)
