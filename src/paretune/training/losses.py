"""The losses of preference methods, each a small function of log-probabilities; a sum over pairs, not a mean.

Sums are divided by counts of the whole effective batch, so that accumulation changes nothing.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def dpo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, *, beta: float) -> Tensor:
    """DPO [P]: -log sigmoid(beta * ((logp_c - logp_r) - (ref_c - ref_r))), log-probabilities summed over tokens.

    Rafailov et al. 2023, equation 7; zero references give the reference-free form.
    """
    return -F.logsigmoid(beta * ((chosen - rejected) - (ref_chosen - ref_rejected)))


def modpo(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    margin: Tensor,
    *,
    beta: float,
    weight: float,
) -> Tensor:
    """MODPO [P]: -log sigmoid((beta * ((logp_c - logp_r) - (ref_c - ref_r)) - margin) / weight).

    `weight` is the primary objective's, `margin` [P] what the other objectives, weighed, make of the pair. Zhou et al.
    2024, equation 9; a weight of one and no margin is DPO.
    """
    return -F.logsigmoid((beta * ((chosen - rejected) - (ref_chosen - ref_rejected)) - margin) / weight)


def contrast(own: Tensor, other: Tensor, *, beta: float) -> Tensor:
    """Profile contrast [P]: -log sigmoid(beta * (log p(y | x, s_y) - log p(y | x, s_y'))).

    `own` conditions a completion on its own profile, `other` on the profile of another completion of the same prompt.
    A reference model would cancel only in part, and none is used.
    """
    return -F.logsigmoid(beta * (own - other))
