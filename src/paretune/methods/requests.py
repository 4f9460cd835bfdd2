"""What the generator is asked for in training: profiles as they are, blurred, or as they are sensed.

At inference a policy is conditioned on what its head senses, which is never quite right. A generator that has only seen
the truth meets such profiles for the first time when it serves (the training-inference discrepancy of Wang et al.,
"Self-Guided Alignment", ACL 2026). Two remedies, both drawn by (seed, epoch, row): condition a share of the rows on a
sensed profile, and blur the truth by noise as large as the head's error.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from paretune.profile import Profile

_NORMAL = NormalDist()
CLIP = 0.01
"""Values are kept this far from 0 and 1 before they are taken to probit space."""


def probit(value: float) -> float:
    """The standard normal quantile of a value in [0, 1], clipped to [0.01, 0.99]."""
    return _NORMAL.inv_cdf(min(max(value, CLIP), 1 - CLIP))


@dataclass(frozen=True)
class SensedRows:
    """Profiles [N] sensed for the training rows by heads that never saw them, and the error's factor [M][M].

    The factor is the lower Cholesky factor of the residual's covariance in probit space, objectives in `names`' order.
    """

    names: Sequence[str]
    profiles: Sequence[Profile]
    factor: Sequence[Sequence[float]]

    @classmethod
    def of(cls, names: Sequence[str], sensed_NM: Tensor, targets_NM: Tensor) -> SensedRows:
        """From out-of-fold predictions and the targets (NaN: missing, left out of the covariance)."""
        low, high = CLIP, 1 - CLIP
        error_NM = torch.special.ndtri(targets_NM.double().clamp(low, high)) - torch.special.ndtri(
            sensed_NM.double().clamp(low, high)
        )
        present_NM = ~torch.isnan(error_NM)
        error_NM = torch.where(present_NM, error_NM, 0.0)
        shared_MM = present_NM.double().T @ present_NM.double()
        cov_MM = error_NM.T @ error_NM / shared_MM.clamp_min(1)
        # pairwise means need not be positive definite together: raise the smallest eigenvalue
        values, vectors = torch.linalg.eigh(cov_MM)
        cov_MM = vectors @ torch.diag(values.clamp_min(1e-6)) @ vectors.T
        factor = torch.linalg.cholesky(cov_MM).tolist()
        return cls(names, [dict(zip(names, row, strict=True)) for row in sensed_NM.tolist()], factor)

    def blurred(self, profile: Mapping[str, float], scale: float, draw: random.Random) -> Profile:
        """The (partial) profile with noise of the residual's shape, `scale` times as large."""
        noise = [draw.gauss(0.0, 1.0) for _ in self.names]
        out = {}
        for row, name in zip(self.factor, self.names, strict=True):
            if name in profile:
                shift = scale * sum(weight * each for weight, each in zip(row, noise, strict=True))
                out[name] = _NORMAL.cdf(probit(profile[name]) + shift)
        return out


def profile_distance(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    """Mean absolute difference over the objectives both have; 0 when they share none."""
    shared = [name for name in one if name in two]
    return sum(abs(one[name] - two[name]) for name in shared) / len(shared) if shared else 0.0
