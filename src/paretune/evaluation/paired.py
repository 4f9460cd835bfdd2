"""Is one policy better than another on the same prompts? Paired tests, and Holm's correction for many of them.

Means: the paired sign-flip permutation test. Were the two policies alike, each prompt's difference d_i could as well
have the other sign, so p is the share of the 2^n sign patterns s with |sum s_i d_i| >= |sum d_i| (Fisher, "The Design
of Experiments", 1935). Up to `EXACT` differences that are not zero all patterns are counted; beyond, B = `FLIPS` are
drawn and p = (1 + hits) / (1 + B), which is never 0 (Phipson and Smyth, "Permutation P-values should never be zero",
2010).

Hypervolumes are no means over prompts, so their difference D is resampled: p = 2 min(P(D* <= 0), P(D* >= 0)) with
P(.) = (1 + hits) / (1 + B) over B paired bootstrap resamples, at most 1: the level at which the percentile interval
just touches zero. It is never below 2 / (1 + B), so many tests need many resamples.

Holm ("A simple sequentially rejective multiple test procedure", 1979): of p_(1) <= ... <= p_(k), the adjusted p_(i) is
the largest of min(1, (k - j + 1) p_(j)) over j <= i.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paretune.bootstrap import Floats

EXACT = 12
FLIPS = 9999
LEVEL = 0.05
"""Adjusted p below this is called a difference."""
SAME = 1e-12
"""A difference no larger than this is rounding."""
_AT_ONCE = 1000


def sign_flip_p(differences: Floats, seed: int = 0) -> float | None:
    """Two-sided p of paired differences [n]; NaN is left out, `None` when nothing is left."""
    known = np.asarray(differences, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return None
    moved = known[np.abs(known) > SAME]  # a zero is the same under either sign
    n = len(moved)
    if n == 0:
        return 1.0
    observed = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()  # sums in another order differ by a hair
    if n <= EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float((np.abs(signs @ moved) >= observed).mean())
    draw, hits, left = np.random.default_rng([seed, n]), 0, FLIPS
    while left:
        size = min(_AT_ONCE, left)
        signs = draw.integers(0, 2, (size, n)) * 2.0 - 1.0
        hits += int((np.abs(signs @ moved) >= observed).sum())
        left -= size
    return (1 + hits) / (1 + FLIPS)


def bootstrap_p(resampled: Floats) -> float | None:
    """Two-sided p of a difference from its bootstrap resamples [B]; `None` when none is finite."""
    known = resampled[np.isfinite(resampled)]
    if not len(known):
        return None
    tails = (int((known <= SAME).sum()), int((known >= -SAME).sum()))
    return min(1.0, 2 * (1 + min(tails)) / (1 + len(known)))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p values in the order given; one that is undefined stays so, and is not counted as a test."""
    order = sorted((p, at) for at, p in enumerate(values) if p is not None)
    out: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, at) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        out[at] = highest
    return out
