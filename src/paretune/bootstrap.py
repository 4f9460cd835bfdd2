"""Bootstrap intervals over prompts, vectorised, seeded, and never NaN.

A resample is a vector of how often each prompt was drawn, so every statistic is a weighted one and all resamples are
done in one matrix product: `weights` is [B, n] with the observed sample (all ones) as its first row. Undefined values
(the rank correlation of a constant) become `None` with a reason, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Weights [B, n] to one value a row [B]; NaN where it is undefined."""
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% percentile interval over `n` prompts; all `None`, with the reason `why`, when undefined."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    why: str | None = None

    @property
    def above_zero(self) -> bool:
        """The interval excludes zero on the positive side."""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """The interval excludes zero on the negative side."""
        return self.high is not None and self.high < 0

    def to_dict(self) -> dict[str, Any]:
        """JSON form; `why` only where the value is undefined."""
        out: dict[str, Any] = {"value": self.value, "low": self.low, "high": self.high, "n": self.n}
        return out | ({"why": self.why} if self.why else {})


def undefined(why: str, n: int = 0) -> Estimate:
    """An estimate that could not be had."""
    return Estimate(None, None, None, n, why)


class Bootstrap:
    """Draws resamples of prompts by a seed: the same seed and the same prompts give the same intervals."""

    def __init__(self, times: int = 1000, seed: int = 0) -> None:
        self.times, self.seed = times, seed

    def weights(self, n: int) -> Floats:
        """How often each of n prompts is drawn [times + 1, n]; the first row is the sample itself, all ones."""
        draws = np.random.default_rng([self.seed, n]).integers(0, n, (self.times, n))
        flat = draws + n * np.arange(self.times)[:, None]
        counts = np.bincount(flat.ravel(), minlength=self.times * n).reshape(self.times, n)
        return np.vstack([np.ones((1, n)), counts])

    def estimate(self, statistic: Statistic, n: int, why: str = "undefined on these prompts") -> Estimate:
        """The statistic of the sample, with the interval of its resamples."""
        if n == 0:
            return undefined("no prompt has a value", 0)
        values = statistic(self.weights(n))
        if not math.isfinite(values[0]):
            return undefined(why, n)
        again = values[1:][np.isfinite(values[1:])]
        if n < 2 or len(again) < max(2, self.times // 2):
            # a value without an interval excludes nothing
            return Estimate(float(values[0]), None, None, n)
        low, high = np.quantile(again, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Estimate(float(values[0]), float(low), float(high), n)

    def mean(self, values: ArrayLike) -> Estimate:
        """Mean of [n] values over prompts; NaN marks a prompt without one, which is left out and not counted."""
        array = np.asarray(values, dtype=np.float64)
        present = array[np.isfinite(array)]
        return self.estimate(lambda weights: weighted_mean(present, weights), len(present))


def weighted_mean(values: Floats, weights: Floats) -> Floats:
    """Means [B] of values [n] under weights [B, n]; NaN where no weight is left."""
    total = weights.sum(axis=1)
    return np.asarray(np.where(total > 0, weights @ values / np.where(total > 0, total, 1), np.nan))


def weighted_r2(truth: Floats, guess: Floats, weights: Floats) -> Floats:
    """1 - squared error / squared deviation from the mean of the held-out truth, for every resample [B]."""
    centre = weighted_mean(truth, weights)
    spread = weights @ truth**2 - weights.sum(axis=1) * centre**2
    error = weights @ (truth - guess) ** 2
    defined = spread > 1e-12 * weights.sum(axis=1)
    return np.where(defined, 1 - error / np.where(defined, spread, 1), np.nan)


def weighted_ranks(values: Floats, weights: Floats) -> Floats:
    """Mid-ranks [B, n] of values [n], each counted `weights` [B, n] times; ties share their middle."""
    _, first, codes = np.unique(np.sort(values), return_index=True, return_inverse=True)
    order = np.argsort(values, kind="stable")
    counts = np.add.reduceat(weights[:, order], first, axis=1)
    codes = codes[np.argsort(order)]
    middle = counts.cumsum(axis=1) - counts / 2 + 0.5
    return np.asarray(middle[:, codes])


def weighted_spearman(first: Floats, second: Floats, weights: Floats) -> Floats:
    """Spearman's rank correlation [B] of two [n] vectors; NaN where either is constant in the resample."""
    total = weights.sum(axis=1, keepdims=True)
    ranks = [weighted_ranks(values, weights) for values in (first, second)]
    one, two = (rank - (weights * rank).sum(axis=1, keepdims=True) / np.maximum(total, 1) for rank in ranks)
    variances = (weights * one**2).sum(axis=1) * (weights * two**2).sum(axis=1)
    defined = variances > 1e-9
    return np.where(defined, (weights * one * two).sum(axis=1) / np.sqrt(np.where(defined, variances, 1)), np.nan)
