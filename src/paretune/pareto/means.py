"""Fronts of mean scores: points of which each is the mean over the same n prompts, and their volume under resamples."""

from __future__ import annotations

import numpy as np

from paretune.bootstrap import Floats
from paretune.pareto.front import hypervolume


def complete(stack: Floats) -> Floats:
    """Of values [points, n, m] those prompts on which no score is missing, [points, k, m]."""
    return stack[:, np.isfinite(stack).all(axis=(0, 2))]


def volumes(points: Floats, corner: Floats, weights: Floats) -> Floats:
    """Hypervolume [B] of the means of points [p, n, m] under each resample's weights [B, n]."""
    means = np.einsum("bn,pnm->bpm", weights, points) / weights.sum(axis=1)[:, None, None]
    return np.array([hypervolume(each, corner) for each in means])
