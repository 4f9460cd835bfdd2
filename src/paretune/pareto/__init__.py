"""Fronts: dominance, hypervolume, how even a front is, and the `front` verb for any table of points.

Use `front("points.csv", maximise=["quality"], minimise=["seconds"])`, or the functions of `pareto.front` on arrays.
"""

from __future__ import annotations

from paretune.pareto.front import (
    REFERENCE_RULE,
    default_reference,
    dominates,
    hypervolume,
    non_dominated,
    spacing,
    sparsity,
)
from paretune.pareto.table import FrontResult, front

__all__ = [
    "REFERENCE_RULE",
    "FrontResult",
    "default_reference",
    "dominates",
    "front",
    "hypervolume",
    "non_dominated",
    "spacing",
    "sparsity",
]
