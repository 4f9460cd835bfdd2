"""Losses of reward models, each a small function; one value a pair or rating, to be summed.

Sums are divided by counts of the whole effective batch, so that accumulation changes nothing.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def bradley_terry(winner_P: Tensor, loser_P: Tensor, margin_P: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(r_w - r_l - margin) [P] (Bradley and Terry 1952; Ouyang et al. 2022, equation 1).

    The margin is Llama 2's (Touvron et al. 2023, equation 2): 0 where none is asked for.
    """
    return -F.logsigmoid(winner_P - loser_P - margin_P)


def centring(winner_P: Tensor, loser_P: Tensor) -> Tensor:
    """(r_w + r_l)^2 [P] (Eisenstein et al. 2023): pairs say nothing of the rewards' mean, this keeps it near zero."""
    return (winner_P + loser_P).square()


def squared(reward_R: Tensor, target_R: Tensor) -> Tensor:
    """Squared errors [R] against standardised ratings."""
    return (reward_R - target_R).square()


def ordinal(reward_R: Tensor, cut_RT: Tensor, level_R: Tensor) -> Tensor:
    """Mean over the thresholds of binary cross-entropies [R] of P(rating above level t) = sigmoid(r - cut_t).

    A cumulative logistic link (McCullagh 1980) taught as CORAL does (Cao et al. 2020). `level` is the rating's place
    among its objective's ascending levels; thresholds beyond those of an objective are NaN.
    """
    threshold_T = cut_RT.new_tensor(range(cut_RT.shape[1]))
    above_RT = (level_R[:, None] > threshold_T).to(cut_RT.dtype)
    there_RT = ~cut_RT.isnan()
    logit_RT = reward_R[:, None] - cut_RT.nan_to_num()
    each_RT = F.binary_cross_entropy_with_logits(logit_RT, above_RT, reduction="none") * there_RT
    return each_RT.sum(1) / there_RT.sum(1)
