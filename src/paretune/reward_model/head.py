"""The reward head: hidden states of answers' last tokens to one value an objective, and what the values mean.

The head is float32 whatever the backbone is. Its raw outputs r [K, M] are what the losses see; `values` gives them in
the objective's unit, which is one of

    rating     the rating's own unit: r * std + mean (loss `mse`)
    ordinal    a latent logit: P(rating above level t) = sigmoid(r - cut_t)
    logit      a Bradley-Terry logit: P(one answer is preferred to another) = sigmoid(r - r'), pairs alone
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paretune.reward_model.config import RewardHeadConfig
from paretune.reward_model.description import LOGIT, ORDINAL


class RewardHead(nn.Module):
    """Hidden states [K, H] to raw rewards [K, M].

    Saved with the weights: `rating_mean`, `rating_std` [M] by which ratings are standardised (0 and 1 where there are
    none), and `cuts` [M, T], the ordinal thresholds, trained, where any objective has them (the places of the others,
    and beyond an objective's own, are never read).
    """

    rating_mean: Tensor
    rating_std: Tensor

    def __init__(
        self,
        hidden_size: int,
        units: Sequence[str],
        levels: Sequence[Sequence[float]],
        config: RewardHeadConfig,
    ) -> None:
        super().__init__()
        self.config, self.units, self.levels = config, tuple(units), [list(each) for each in levels]
        layers: list[nn.Module] = [nn.LayerNorm(hidden_size), nn.Dropout(config.dropout)]
        width = hidden_size
        for _ in range(config.depth):
            layers += [nn.Linear(width, config.width), nn.ReLU()]
            width = config.width
        last = nn.Linear(width, len(self.units))
        with torch.no_grad():  # rewards begin near zero, so that the first loss is that of not knowing
            last.weight.mul_(0.1)
            last.bias.zero_()
        self.layers = nn.Sequential(*layers, last)
        self.register_buffer("rating_mean", torch.zeros(len(self.units)))
        self.register_buffer("rating_std", torch.ones(len(self.units)))
        most = max((len(each) - 1 for each in self.levels if each), default=0)
        self.cuts = nn.Parameter(torch.zeros(len(self.units), most)) if most else None

    @property
    def objectives(self) -> int:
        """M, how many objectives it measures."""
        return len(self.units)

    def forward(self, hidden_KH: Tensor) -> Tensor:
        """Raw rewards [K, M], in float32 (float64 for a float64 head)."""
        raw_KM: Tensor = self.layers(hidden_KH.to(self.rating_mean.dtype))
        return raw_KM

    def cuts_of(self, objective_R: Tensor) -> Tensor:
        """Thresholds [R, T] of the objectives `objective_R`, NaN beyond an objective's own."""
        assert self.cuts is not None
        counts_M = torch.tensor([max(0, len(each) - 1) for each in self.levels], device=self.cuts.device)
        beyond_MT = torch.arange(self.cuts.shape[1], device=self.cuts.device) >= counts_M[:, None]
        return self.cuts.masked_fill(beyond_MT, float("nan"))[objective_R]

    @torch.no_grad()
    def start_cuts(self, objective: int, level_R: Tensor) -> None:
        """Let an objective's thresholds say the training ratings' own frequencies at a reward of zero."""
        assert self.cuts is not None
        for at in range(len(self.levels[objective]) - 1):
            share = float((level_R > at).double().mean())
            self.cuts[objective, at] = -torch.logit(torch.tensor(share, dtype=torch.float64).clamp(0.01, 0.99))

    def values(self, raw_KM: Tensor) -> Tensor:
        """Raw rewards in the objectives' units."""
        return raw_KM * self.rating_std + self.rating_mean

    @torch.no_grad()
    def ratings(self, raw_KM: Tensor) -> Tensor:
        """The expected rating [K, M]: itself for `rating`, over the levels for `ordinal`, NaN for `logit`."""
        out_KM = self.values(raw_KM)
        for m, unit in enumerate(self.units):
            if unit == ORDINAL:
                level_L = raw_KM.new_tensor(self.levels[m])
                assert self.cuts is not None
                above_KT = torch.sigmoid(raw_KM[:, m, None] - self.cuts[m, : len(level_L) - 1])
                out_KM[:, m] = level_L[0] + above_KT @ level_L.diff()
            elif unit == LOGIT:
                out_KM[:, m] = float("nan")
        return out_KM
