"""Dominance, the non-dominated set, hypervolume, sparsity and spacing of points.

Points are rows of an [n, m] array, one column an objective; `maximise` says for each column whether more is better
(one bool for all, or one a column; True by default, as paretune's normalised scores are all "more is better").
moocore does the dominance and the hypervolume; it takes NaN in silence, so every array is checked here first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paretune.errors import InputError

Floats = NDArray[np.float64]
Maximise = bool | Sequence[bool]
MARGIN = 0.1
REFERENCE_RULE = "the worst value of each objective over all points, moved 10% of that objective's range further out"


def as_points(points: ArrayLike) -> Floats:
    """`points` as a finite float [n, m] array, n and m at least 1; anything else is an `InputError`."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InputError(f"points must be a table of n rows and m columns, found shape {array.shape}")
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        row, column = (int(index) for index in bad[0])
        raise InputError(f"point {row}, objective {column} is {array[row, column]}; every value must be finite")
    return array


def _directions(maximise: Maximise, width: int) -> list[bool]:
    """One bool a column."""
    if isinstance(maximise, bool):
        return [maximise] * width
    if len(maximise) != width:
        raise InputError(f"{len(maximise)} directions were given for {width} objectives")
    return [bool(flag) for flag in maximise]


def gains(points: ArrayLike, maximise: Maximise = True) -> Floats:
    """The points turned so that more is better in every column."""
    array = as_points(points)
    return array * np.where(_directions(maximise, array.shape[1]), 1.0, -1.0)


def dominates(first: ArrayLike, second: ArrayLike, maximise: Maximise = True) -> bool:
    """True when `first` [m] is at least as good as `second` [m] everywhere and better somewhere."""
    one, two = gains([np.asarray(first), np.asarray(second)], maximise)
    return bool((one >= two).all() and (one > two).any())


def non_dominated(points: ArrayLike, maximise: Maximise = True) -> NDArray[np.bool_]:
    """Mask [n] of the points that no other point dominates. Copies of a point on the front are all kept."""
    import moocore

    array = as_points(points)
    mask = moocore.is_nondominated(array, maximise=_directions(maximise, array.shape[1]), keep_weakly=True)
    return np.asarray(mask, dtype=np.bool_)


def default_reference(points: ArrayLike, maximise: Maximise = True) -> Floats:
    """The reference point [m] used when none is given: see `REFERENCE_RULE`.

    A column whose values are all equal has no range; there the step is 10% of its size, or 0.1 around zero.
    """
    better = gains(points, maximise)
    low, spread = better.min(axis=0), np.ptp(better, axis=0)
    size = np.where(low == 0, 1.0, np.abs(low))
    worst = low - MARGIN * np.where(spread > 0, spread, size)
    corner: Floats = worst * np.where(_directions(maximise, better.shape[1]), 1.0, -1.0)
    return corner


def check_reference(reference: ArrayLike, width: int) -> Floats:
    """A finite reference point of `width` numbers."""
    point = np.asarray(reference, dtype=np.float64)
    if point.ndim != 1 or len(point) != width:
        found = len(point) if point.ndim == 1 else f"shape {point.shape}"
        raise InputError(f"the reference point needs {width} numbers, one an objective; found {found}")
    if not np.isfinite(point).all():
        raise InputError(f"the reference point must be finite, found {point.tolist()}")
    return point


def hypervolume(points: ArrayLike, reference: ArrayLike, maximise: Maximise = True) -> float:
    """Volume between the points and the reference point, in the product of the objectives' units.

    A point that is not better than the reference in every objective adds nothing; 0 when none is.
    """
    import moocore

    array = as_points(points)
    corner = check_reference(reference, array.shape[1])
    return float(moocore.hypervolume(array, ref=corner, maximise=_directions(maximise, array.shape[1])))


def _front_points(points: ArrayLike, maximise: Maximise) -> Floats:
    """The distinct points of the front [k, m], sorted."""
    array = as_points(points)
    return np.unique(array[non_dominated(array, maximise)], axis=0)


def sparsity(points: ArrayLike, maximise: Maximise = True) -> float | None:
    """Mean squared gap of neighbours on the front, summed over objectives; small is dense.

    As Xu et al., "Prediction-Guided Multi-Objective Reinforcement Learning" (ICML 2020): the front's values are sorted
    in each objective by itself. `None` with fewer than two distinct points on the front.
    """
    front = _front_points(points, maximise)
    if len(front) < 2:
        return None
    return float((np.diff(np.sort(front, axis=0), axis=0) ** 2).sum() / (len(front) - 1))


def spacing(points: ArrayLike, maximise: Maximise = True) -> float | None:
    """Standard deviation (n - 1) of each front point's distance to its nearest neighbour; 0 is perfectly even.

    As Schott, "Fault Tolerant Design Using Single and Multicriteria Genetic Algorithm Optimization" (1995), with city
    block distances. `None` with fewer than two distinct points on the front.
    """
    front = _front_points(points, maximise)
    if len(front) < 2:
        return None
    # a point at a time: the full distance cube of a long front would not fit in memory
    nearest = np.empty(len(front))
    for index, point in enumerate(front):
        distances = np.abs(front - point).sum(axis=1)
        distances[index] = np.inf
        nearest[index] = distances.min()
    return float(nearest.std(ddof=1))
