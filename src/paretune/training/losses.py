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


def contrast(own: Tensor, other: Tensor, *, beta: float) -> Tensor:
    """Profile contrast [P]: -log sigmoid(beta * (log p(y | x, s_y) - log p(y | x, s_y'))).

    `own` conditions a completion on its own profile, `other` on the profile of another completion of the same prompt.
    A reference model would cancel only in part, and none is used.
    """
    return -F.logsigmoid(beta * (own - other))
