"""CPO: control tokens `<helpfulness:5>` for some objectives; likelihood, then DPO that rewards meeting what they ask.

Guo et al., "Controllable Preference Optimization: Toward Controllable Multi-Objective Alignment", EMNLP 2024. Stage 1
(CPSFT) teaches scored completions under the tokens of their own levels. Stage 2 (CDPO) is DPO, with the policy of
stage 1 as reference, between completions of a prompt under the tokens of one of them, and the winner is the one with
the higher

    R = mean over objectives of  -penalty * |wanted level - level|  where controlled,  the value  where not.

Which objectives are controlled is drawn by (seed, epoch, row).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from paretune.errors import InputError
from paretune.methods.base import Method
from paretune.methods.conditioned import LikelihoodConfig
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, Weights, branch_losses, counts, scored_answers
from paretune.profile import Profile, level_of
from paretune.training.module import Outputs, TrainModule


@dataclass(frozen=True)
class CpoConfig(LikelihoodConfig):
    """Settings of `cpo` beyond the shared ones.

    completions: scored completions of a prompt taught at one time in stage 1.
    sft_epochs: how many of the epochs are stage 1; the others are stage 2.
    control: the probability by which an objective is controlled. Stage 1 always controls one at least.
    penalty: lambda, what a level's distance from the wanted one costs, in levels of the objectives not controlled.
    beta: strength of the pull to the policy of stage 1.
    """

    style: ClassVar[str] = "cpo"
    sft_epochs: int = 1
    control: float = 0.5
    penalty: float = 1.0
    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.completions < 1:
            raise InputError(f"must be at least 1, found {self.completions}", field="completions")
        if not 0 <= self.sft_epochs <= self.epochs:
            raise InputError(
                f"must lie between 0 and epochs={self.epochs}, found {self.sft_epochs}", field="sft_epochs"
            )
        if not 0 <= self.control <= 1:
            raise InputError(f"must lie in [0, 1], found {self.control}", field="control")
        for name in ("penalty", "beta"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"must be above 0, found {getattr(self, name)}", field=name)


class CpoLearner:
    """Stage 1: branches under their own tokens. Stage 2: two completions under the tokens of a drawn one."""

    def __init__(self, examples: Sequence[Example], config: CpoConfig, names: Sequence[str]) -> None:
        self.examples = [each for each in examples if scored_answers(each)]
        self.config = config
        self.names = list(names)
        self.needs_reference = False
        self._reference: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.examples)

    def begin_epoch(self, epoch: int, module: TrainModule) -> None:
        """Where stage 2 begins, what stage 1 made becomes the reference."""
        self.needs_reference = epoch >= self.config.sft_epochs
        if epoch == self.config.sft_epochs:
            module.freeze_reference()
            self._reference = module.reference or {}

    def state(self) -> dict[str, Tensor]:
        """The reference's tensors, once there is one."""
        return dict(self._reference)

    def restore(self, state: dict[str, Tensor], module: TrainModule) -> None:
        """Put back the reference of an interrupted training."""
        device = next(module.parameters()).device
        module.reference = self._reference = {name: each.to(device) for name, each in state.items()}

    def item(self, index: int, epoch: int) -> RoleItem:
        """The branches of a prompt in an epoch."""
        example = self.examples[index]
        draw = random.Random(f"{self.config.seed}:{epoch}:{example.row.id}:cpo")
        item = RoleItem(example.row.id, example.prefix)
        known = scored_answers(example)
        if epoch < self.config.sft_epochs:
            for i in draw.sample(known, min(self.config.completions, len(known))):
                profile = example.answers[i].profile
                item.likelihood.append(item.add(example, i, self._controlled(profile, draw, least=1)))
            return item
        wanted = self._controlled(example.answers[draw.choice(known)].profile, draw, least=0)
        rewards = {i: self.reward(example.answers[i].profile, wanted) for i in known}
        pairs = [(one, two) for one in known for two in known if rewards[one] > rewards[two]]
        if pairs:
            winner, loser = draw.choice(pairs)
            item.preference = (item.add(example, winner, wanted), item.add(example, loser, wanted))
        else:  # nothing tells the completions apart under this request; the row still has its place in the batch
            item.add(example, known[0], wanted)
        return item

    def _controlled(self, profile: Profile, draw: random.Random, *, least: int) -> Profile:
        """The part of a profile that is controlled."""
        names = [name for name in self.names if name in profile]
        kept = {name for name in names if draw.random() < self.config.control}
        if len(kept) < least:
            kept.add(draw.choice(names))
        return {name: profile[name] for name in names if name in kept}

    def reward(self, values: Mapping[str, float], wanted: Mapping[str, float]) -> float:
        """R of a completion with `values` under a request for the levels of `wanted`, objectives without a value apart.

        Values and levels are both on the paper's scale of 1 to 5: an objective that is not controlled has 1 + 4 value.
        """
        terms = [
            -self.config.penalty * abs(level_of(wanted[name]) - level_of(value)) if name in wanted else 1 + 4 * value
            for name, value in values.items()
        ]
        return sum(terms) / len(terms)

    def counts(self, items: Sequence[RoleItem]) -> dict[str, float]:
        """Label tokens of stage 1, or pairs of stage 2."""
        return counts(items)

    def loss(
        self, out: Outputs, reference: Tensor | None, items: Sequence[RoleItem], total: dict[str, float]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Mean negative log-likelihood a token in stage 1, mean DPO loss a pair in stage 2."""
        weights = Weights(likelihood=1.0, dpo=1.0, beta=self.config.beta)
        return branch_losses(out, reference, items, total, weights)


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "epochs": 6,
        "sft_epochs": 3,
        "scale": "fixed",
        "batch_size": 32,
        "lr": 5e-5,
        "schedule": "linear",
        "betas": (0.9, 0.999),
        "clip": 1.0,
        "dtype": "bfloat16",
        "lora_r": 64,
        "lora_alpha": 64,
        "lora_dropout": 0.0,
    },
}
"""`paper`: the released DPO script's settings (OpenBMB/CPO), for both stages; the released stage 1 trains all weights
with lr 1e-5, and each stage warms up. Its data are ratings with known bounds, hence `fixed`."""

METHOD = Method(
    name="cpo",
    help="controllable preference optimisation: control tokens, likelihood and then DPO towards what they ask",
    config=CpoConfig,
    learner=CpoLearner,
    conditions=True,
    weights="profile",
    presets=PRESETS,
    default_preset="default",
)
