"""How well the head senses: R2, MAE and Spearman on held-out prompts, against a constant and a linear probe.

The constant is the training mean; the probe is ridge regression from the base model's read-out states to the same
targets of the same training prompts, its strength picked by closed-form leave-one-out. A head that does not beat them
has learnt nothing that the base model's states do not show by themselves. Its intervals are held to their word: the
share of held-out targets inside them, and how wide they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretune.bootstrap import (
    Bootstrap,
    Estimate,
    Floats,
    undefined,
    weighted_mean,
    weighted_r2,
    weighted_spearman,
)
from paretune.profile import Profile

ALPHAS: Floats = 10.0 ** np.arange(-2, 6.5, 0.5)
"""Ridge strengths tried, in units of one standardised feature seen once."""
MIN_TRAIN = 5
INTERVAL_LEVEL = 0.8
"""The share of targets that the sensed intervals shown here should hold."""
CONSTANT_WHY = "the prediction or the truth is constant, so its ranks say nothing"


def matrix(profiles: Sequence[Profile], names: Sequence[str]) -> Floats:
    """Profiles as [n, m]; NaN where one leaves an objective open."""
    return np.array([[profile.get(name, np.nan) for name in names] for profile in profiles], dtype=np.float64).reshape(
        len(profiles), len(names)
    )


def quality(truth: Floats, guess: Floats, bootstrap: Bootstrap) -> dict[str, Estimate]:
    """R2 (about the held-out mean), MAE and Spearman of predictions [n] for one objective; NaN is left out."""
    known = np.isfinite(truth) & np.isfinite(guess)
    t, g = truth[known], guess[known]
    n = len(t)
    return {
        "r2": bootstrap.estimate(lambda w: weighted_r2(t, g, w), n, "the truth is constant, so R2 is undefined"),
        "mae": bootstrap.estimate(lambda w: weighted_mean(np.abs(t - g), w), n),
        "spearman": bootstrap.estimate(lambda w: weighted_spearman(t, g, w), n, CONSTANT_WHY),
    }


@dataclass(frozen=True)
class Ridge:
    """Ridge regression on standardised features, with an unpenalised intercept."""

    centre: Floats
    size: Floats
    coefficients: Floats
    intercept: float
    alpha: float

    def predict(self, features: NDArray[Any]) -> Floats:
        """Predictions [n] for features [n, h], clipped to [0, 1] as profiles are."""
        scaled = (np.asarray(features, dtype=np.float64) - self.centre) / self.size
        return np.clip(scaled @ self.coefficients + self.intercept, 0.0, 1.0)


def fit_ridge(features: NDArray[Any], target: Floats) -> Ridge:
    """Fit targets [n] on features [n, h]; alpha minimises the exact leave-one-out squared error over `ALPHAS`.

    With U S V' the centred features' decomposition, the hat matrix' diagonal is 1/n + sum_k U_ik^2 S_k^2 / (S_k^2 + a)
    and a row's left-out residual is its residual / (1 - diagonal) (Hastie et al., "The Elements of Statistical
    Learning", 7.10).
    """
    x = np.asarray(features, dtype=np.float64)
    centre, size = x.mean(axis=0), x.std(axis=0)
    size = np.where(size > 1e-12, size, 1.0)
    u, s, vt = np.linalg.svd((x - centre) / size, full_matrices=False)
    mean = float(target.mean())
    rotated, squares = u.T @ (target - mean), s**2
    best: tuple[float, float] | None = None
    for alpha in ALPHAS:
        shrink = squares / (squares + alpha)
        residual = (target - mean) - u @ (shrink * rotated)
        leverage = 1 / len(target) + (u**2) @ shrink
        error = float(((residual / np.maximum(1 - leverage, 1e-9)) ** 2).mean())
        if best is None or error < best[0]:
            best = (error, float(alpha))
    assert best is not None
    coefficients = vt.T @ (s / (squares + best[1]) * rotated)
    return Ridge(centre, size, coefficients, mean, best[1])


@dataclass(frozen=True)
class Probe:
    """Predictions of the linear probe for the test prompts [n, m], and each objective's alpha (`None`: not fitted)."""

    predictions: Floats
    alphas: dict[str, float | None]
    train: int


def linear_probe(
    train_features: NDArray[Any], train_targets: Floats, test_features: NDArray[Any], names: Sequence[str]
) -> Probe:
    """Fit one ridge an objective on [t, h] and [t, m], predict for [n, h]; too few known targets leave NaN."""
    predictions = np.full((len(test_features), len(names)), np.nan)
    alphas: dict[str, float | None] = {}
    for column, name in enumerate(names):
        known = np.isfinite(train_targets[:, column])
        if known.sum() < MIN_TRAIN:
            alphas[name] = None
            continue
        ridge = fit_ridge(train_features[known], train_targets[known, column])
        predictions[:, column] = ridge.predict(test_features)
        alphas[name] = ridge.alpha
    return Probe(predictions, alphas, len(train_features))


def head_quality(
    names: Sequence[str],
    targets: Floats,
    sensed: Floats | None,
    constant: Profile,
    probe: Probe | None,
    bootstrap: Bootstrap,
    intervals: tuple[Floats, Floats] | None = None,
) -> dict[str, Any]:
    """Per objective, the quality of head, constant and probe against targets [n, m], as JSON.

    `gain` is by how much the head's squared error undercuts the constant's, per prompt: positive is better.
    `intervals` are low and high ends [n, m]; None for a head whose intervals are not calibrated.
    """
    out: dict[str, Any] = {}
    for column, name in enumerate(names):
        truth = targets[:, column]
        fixed = np.full(len(truth), constant[name])
        own: dict[str, Any] = {"constant": _json(quality(truth, fixed, bootstrap)) | {"at": constant[name]}}
        if sensed is not None:
            own["head"] = _json(quality(truth, sensed[:, column], bootstrap))
            gain = (truth - fixed) ** 2 - (truth - sensed[:, column]) ** 2
            own["gain"] = bootstrap.mean(gain).to_dict()
            if intervals is not None:
                own["interval"] = interval_quality(truth, intervals[0][:, column], intervals[1][:, column], bootstrap)
        if probe is not None:
            own["probe"] = _json(quality(truth, probe.predictions[:, column], bootstrap))
            own["probe"] |= {"alpha": probe.alphas[name], "train_prompts": probe.train}
        out[name] = own
    return out


def interval_quality(truth: Floats, low: Floats, high: Floats, bootstrap: Bootstrap) -> dict[str, Any]:
    """Share of the targets [n] inside their intervals, and the intervals' mean width; NaN targets are left out.

    An end may miss the target by rounding: targets have few decimals and networks compute in float32.
    """
    known = np.isfinite(truth)
    inside = np.where(known, (truth >= low - 1e-6) & (truth <= high + 1e-6), np.nan)
    return {
        "level": INTERVAL_LEVEL,
        "coverage": bootstrap.mean(inside).to_dict(),
        "width": bootstrap.mean(np.where(known, high - low, np.nan)).to_dict(),
    }


def interval_ends(
    intervals: Sequence[dict[str, tuple[float, float]] | None], names: Sequence[str]
) -> tuple[Floats, Floats] | None:
    """Low and high ends [n, m] of sensed intervals; None where they are not calibrated."""
    given = [each for each in intervals if each is not None]
    if len(given) < len(intervals) or not given:
        return None
    ends = np.array([[each[name] for name in names] for each in given], dtype=np.float64)
    return ends[..., 0], ends[..., 1]


def no_quality(why: str) -> dict[str, Any]:
    """The three metrics, undefined."""
    return _json({key: undefined(why) for key in ("r2", "mae", "spearman")})


def _json(estimates: dict[str, Estimate]) -> dict[str, Any]:
    return {key: estimate.to_dict() for key, estimate in estimates.items()}
