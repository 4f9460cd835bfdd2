"""What a reward model brings to the shared loop: its items, its counts, its loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paretune.reward_model.config import RewardConfig
from paretune.reward_model.description import ORDINAL
from paretune.reward_model.examples import RewardExample, RewardItem, items_of
from paretune.reward_model.head import RewardHead
from paretune.reward_model.losses import bradley_terry, centring, ordinal, squared
from paretune.reward_model.module import Rewards
from paretune.reward_model.supervision import Supervision


class RewardLearner:
    """Bradley-Terry over pairs and squared or ordinal errors over ratings, each a mean over the effective batch.

    The loss is the mean over all its pairs (of whatever objectives), plus `rating_weight` times the mean over all its
    ratings. An objective that a row says nothing about plays no part in that row.
    """

    needs_reference = False

    def __init__(
        self, examples: Sequence[RewardExample], supervision: Supervision, head: RewardHead, config: RewardConfig
    ) -> None:
        self.items = [item for example in examples for item in items_of(example, config.micro_tokens)]
        self.config, self.head = config, head
        # winners of a minimised objective have the lower values
        self.signs = [-1.0 if each.direction == "minimise" else 1.0 for each in supervision.objectives]

    def __len__(self) -> int:
        return len(self.items)

    def item(self, index: int, epoch: int) -> RewardItem:
        """A prompt with (some of) its answers; the same in every epoch."""
        return self.items[index]

    def counts(self, items: Sequence[RewardItem]) -> dict[str, float]:
        """Pairs and ratings of the effective batch."""
        return {"pair": sum(len(item.pairs) for item in items), "rating": sum(len(item.ratings) for item in items)}

    def loss(
        self, out: Rewards, reference: Tensor | None, items: Sequence[RewardItem], counts: dict[str, float]
    ) -> tuple[Tensor, dict[str, float]]:
        """These items' share of the loss; logged are the parts and the accuracy."""
        raw_KM = out.raw
        loss, logged = raw_KM.sum() * 0.0, dict[str, float]()
        first, pairs, ratings = 0, list[tuple[int, int, int, float]](), list[tuple[int, int, float]]()
        for item in items:
            pairs += [(first + each.winner, first + each.loser, each.objective, each.margin) for each in item.pairs]
            ratings += [(first + each.answer, each.objective, each.value) for each in item.ratings]
            first += len(item.branches)
        if pairs:
            winner_P, loser_P, margin_P = self._sides(raw_KM, pairs)
            value = bradley_terry(winner_P, loser_P, margin_P).sum() / counts["pair"]
            logged["pair"] = float(value.detach())
            logged["pair_accuracy"] = float((winner_P > loser_P).sum()) / counts["pair"]
            loss = loss + value
            if self.config.center:
                loss = loss + self.config.center * centring(winner_P, loser_P).sum() / counts["pair"]
        if ratings:
            value = self._rating_loss(raw_KM, ratings) / counts["rating"]
            logged["rating"] = float(value.detach())
            loss = loss + self.config.rating_weight * value
        return loss, logged

    def _sides(self, raw_KM: Tensor, pairs: Sequence[tuple[int, int, int, float]]) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards [P] of winners and losers, turned so that more is better, and the margins."""
        winner, loser, objective = (torch.tensor([each[at] for each in pairs], device=raw_KM.device) for at in range(3))
        sign_P = raw_KM.new_tensor(self.signs)[objective]
        margin_P = raw_KM.new_tensor([each[3] for each in pairs])
        return raw_KM[winner, objective] * sign_P, raw_KM[loser, objective] * sign_P, margin_P

    def _rating_loss(self, raw_KM: Tensor, ratings: Sequence[tuple[int, int, float]]) -> Tensor:
        """The sum over ratings."""
        answer, objective = (torch.tensor([each[at] for each in ratings], device=raw_KM.device) for at in range(2))
        reward_R = raw_KM[answer, objective]
        if ORDINAL in self.head.units:
            levels = [self.head.levels[m].index(value) for _, m, value in ratings]
            return ordinal(reward_R, self.head.cuts_of(objective), reward_R.new_tensor(levels)).sum()
        value_R = torch.tensor([each[2] for each in ratings], dtype=torch.float64)  # some devices have no float64
        mean_R, std_R = (each.cpu()[objective.cpu()] for each in (self.head.rating_mean, self.head.rating_std))
        return squared(reward_R, ((value_R - mean_R) / std_R).to(reward_R)).sum()


def rating_levels(head: RewardHead, examples: Sequence[RewardExample], objective: int) -> Tensor:
    """Places [R] of an objective's training ratings among its levels."""
    known = head.levels[objective]
    found = [known.index(each.value) for example in examples for each in example.ratings if each.objective == objective]
    return torch.tensor(found)
