"""Fronts of mean scores: a policy's own (its sweep and its natural answers), and the common one of several policies.

A point is a set of answers to the same n prompts, its place their mean normalised scores. The reference point of the
hypervolume is fixed before anything is measured (0 in every objective unless the caller says otherwise), so that the
volumes of different runs can be compared; intervals resample prompts, the same ones for all points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Floats, undefined
from paretune.errors import InputError, check_number, did_you_mean
from paretune.pareto import non_dominated, spacing, sparsity
from paretune.pareto.means import complete, volumes
from paretune.profile import Profile

REFERENCE_RULE = "0 in every objective, the worst end of the normalised scale"
GIVEN_RULE = "given; 0, the worst end of the normalised scale, in every objective not named"
INCOMPLETE = "no prompt has every score under every condition"


def check_reference(reference: Any, names: Sequence[str]) -> Profile:
    """A reference point on the normalised scale: some objectives by name, each below 1. Raises `InputError`."""
    if not isinstance(reference, Mapping) or not reference:
        raise InputError(f"the reference is written name=value,... on the normalised scale, found {reference!r:.100}")
    for name, value in reference.items():
        if name not in names:
            raise InputError(f"the reference names no objective '{name}'.{did_you_mean(str(name), names)}")
        check_number(value, f"the reference of '{name}'")
        if value >= 1:
            raise InputError(
                f"the reference of '{name}' must lie below 1, the best end of the normalised scale, found {value:g}"
            )
    return {name: float(value) for name, value in reference.items()}


def corner_of(reference: Mapping[str, float] | None, names: Sequence[str]) -> Floats:
    """The reference point [m] of these objectives."""
    return np.array([(reference or {}).get(name, 0.0) for name in names], dtype=np.float64)


def front_of(
    values: Mapping[str, Floats],
    names: Sequence[str],
    bootstrap: Bootstrap,
    reference: Mapping[str, float] | None = None,
) -> dict[str, Any] | None:
    """The front of mean scores: one point a key, its [n, m] values over the same n prompts; None without objectives.

    Prompts on which some score is missing count for no point.
    """
    if not names or not values:
        return None
    known = complete(np.stack(list(values.values())))
    corner = corner_of(reference, names)
    prompts = known.shape[1]
    out: dict[str, Any] = {
        "objectives": list(names),
        "reference": dict(zip(names, map(float, corner), strict=True)),
        "reference_rule": GIVEN_RULE if reference else REFERENCE_RULE,
        "prompts": prompts,
        "points": [],
    }
    if not prompts:
        return out | {"hypervolume": undefined(INCOMPLETE).to_dict()}
    means = known.mean(axis=1)
    out["points"] = [
        {"name": name, "values": dict(zip(names, map(float, point), strict=True)), "on_front": bool(kept)}
        for name, point, kept in zip(values, means, non_dominated(means), strict=True)
    ]
    return out | {"hypervolume": bootstrap.estimate(lambda w: volumes(known, corner, w), prompts).to_dict()}


def evenness(points: Floats) -> dict[str, Any]:
    """Sparsity and spacing of mean points [p, m], null with the reason where the front has one distinct point only."""
    found: dict[str, Any] = {"sparsity": sparsity(points), "spacing": spacing(points)}
    if found["sparsity"] is None:
        found["points_why"] = "its front has fewer than two distinct points"
    return found


def front_set(
    values: Mapping[str, Floats],
    kinds: Sequence[str],
    names: Sequence[str],
    bootstrap: Bootstrap,
    reference: Mapping[str, float] | None,
) -> dict[str, Any] | None:
    """A policy's own front: as `front_of`, with each point's kind and how evenly the points lie."""
    front = front_of(values, names, bootstrap, reference)
    if front is None:
        return None
    front["points"] = [point | {"kind": kind} for point, kind in zip(front["points"], kinds, strict=False)]
    means = np.array([[point["values"][name] for name in names] for point in front["points"]])
    even = evenness(means) if len(means) else {"sparsity": None, "spacing": None, "points_why": INCOMPLETE}
    return front | even | {"of": "sweep" if set(kinds) != {"natural"} else "natural"}
