"""One number or one order for a whole profile, worked out when it is asked for and never stored in rows.

A summary of scores throws away which objective was bought at the price of which. Rows therefore keep raw scores only;
whoever must choose (pairs by weights, a best of n) takes one of these views of normalised scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paretune.errors import InputError
from paretune.profile import Profile


def weighted(profile: Profile, weights: Mapping[str, float]) -> float | None:
    """The mean of a profile's values by `weights`, in [0, 1] (linear scalarisation).

    Objectives without a weight, or of weight 0, have no say. None where an objective of positive weight is missing: a
    mean of fewer objectives could not be compared with the others.

    Raises:
        InputError: a weight that is negative or not finite, or no positive weight at all.
    """
    total = _total(weights)
    if any(weight > 0 and name not in profile for name, weight in weights.items()):
        return None
    return math.fsum(weight / total * profile[name] for name, weight in weights.items() if weight > 0)


def _total(weights: Mapping[str, float]) -> float:
    for name, weight in weights.items():
        if not math.isfinite(weight) or weight < 0:
            raise InputError(f"the weight of '{name}' must be a finite number, at least 0; found {weight}")
    try:
        total = math.fsum(weights.values())
    except OverflowError:
        total = math.inf
    if not 0 < total < math.inf:
        raise InputError("weights need at least one that is above 0, and a finite sum")
    return total


def lexicographic(
    profiles: Sequence[Profile], order: Sequence[str], tolerance: float | Mapping[str, float] = 0.0
) -> list[int]:
    """Ranks of profiles compared by the first objective of `order`, equal ones by the second, and so on; best is 0.

    Values are equal at a level when they lie within `tolerance` (one for all objectives, or by name) of the best of
    those still tied; the next band begins with the best value that does not. Bands, unlike pairwise comparison with a
    tolerance, make a transitive order that does not depend on the order of `profiles`. A profile that lacks an
    objective comes after all that have it. Profiles that stay tied share a rank: the number of better ones.

    Raises:
        InputError: an empty `order`, one that names an objective twice, or a tolerance that is negative or not finite.
    """
    if not order or len(set(order)) != len(order):
        raise InputError(f"an order needs at least one objective, each once; found: {', '.join(order) or 'none'}")
    limits = [tolerance.get(name, 0.0) if isinstance(tolerance, Mapping) else tolerance for name in order]
    for name, limit in zip(order, limits, strict=True):
        if not math.isfinite(limit) or limit < 0:
            raise InputError(f"the tolerance of '{name}' must be a finite number, at least 0; found {limit}")
    tied = [list(range(len(profiles)))] if profiles else []
    for name, limit in zip(order, limits, strict=True):
        tied = [band for group in tied for band in _bands(group, profiles, name, limit)]
    ranks = [0] * len(profiles)
    better = 0
    for group in tied:
        for at in group:
            ranks[at] = better
        better += len(group)
    return ranks


def _bands(group: Sequence[int], profiles: Sequence[Profile], name: str, limit: float) -> list[list[int]]:
    """The places of a group in bands of equal standing at one objective, best first."""
    having = sorted((at for at in group if name in profiles[at]), key=lambda at: -profiles[at][name])
    lacking = [at for at in group if name not in profiles[at]]
    bands: list[list[int]] = []
    for at in having:
        if bands and profiles[bands[-1][0]][name] - profiles[at][name] <= limit:
            bands[-1].append(at)
        else:
            bands.append([at])
    return [*bands, lacking] if lacking else bands
