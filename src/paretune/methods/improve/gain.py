"""Did a round raise the hypervolume? The front of the validation prompts before and after, by the same prompts.

A point is the mean normalised scores of the answers under one request (`Goals.sweep`); the reference point is 0 in
every objective. The rule is on the value; the interval (of paired resamples of prompts) says how sure it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Floats
from paretune.data import read_rows
from paretune.methods.improve.answers import ASKED
from paretune.methods.improve.keep import scores_of
from paretune.pareto import non_dominated
from paretune.pareto.means import complete, volumes
from paretune.profile import Objective

WHY = "no validation prompt has every score under every request"


def read_points(path: Path, scored: Sequence[Objective]) -> tuple[list[str], Floats]:
    """Of a file of scored answers the points' names and their scores [points, n, m]."""
    rows = read_rows(path)
    names = [str(each.extra[ASKED]["kind"]) for each in rows[0].completions]
    return names, np.stack([scores_of(row.completions, scored) for row in rows], axis=1)


def front_of(path: Path, scored: Sequence[Objective], seed: int = 0) -> dict[str, Any]:
    """The front of one policy: hypervolume with its interval, and the points; for the report."""
    names, stack = read_points(path, scored)
    known = complete(stack)
    prompts = known.shape[1]
    estimate = Bootstrap(seed=seed).estimate(lambda w: volumes(known, np.zeros(len(scored)), w), prompts, WHY)
    return {"hypervolume": estimate.to_dict(), "prompts": prompts, "points": _points(names, known, scored)}


def compare(before: Path, after: Path, scored: Sequence[Objective], seed: int = 0) -> dict[str, Any]:
    """Both hypervolumes and their difference, on the prompts that have every score before and after."""
    names, one = read_points(before, scored)
    two = read_points(after, scored)[1]
    known = complete(np.concatenate([one, two]))
    prompts, corner, bootstrap = known.shape[1], np.zeros(len(scored)), Bootstrap(seed=seed)
    halves = (known[: len(one)], known[len(one) :])
    found = [volumes(each, corner, bootstrap.weights(prompts)) if prompts else np.empty(0) for each in halves]
    values = {"before": found[0], "after": found[1], "difference": found[1] - found[0]}
    out: dict[str, Any] = {}
    for name, each in values.items():
        estimate = bootstrap.estimate(lambda _, each=each: each, prompts, WHY)  # type: ignore[misc]
        out[name] = estimate.to_dict()
    out |= {"prompts": prompts, "left_out": one.shape[1] - prompts, "reference": _named(corner, scored)}
    return out | {"points": _points(names, halves[1], scored)}


def _points(names: Sequence[str], known: Floats, scored: Sequence[Objective]) -> list[dict[str, Any]]:
    """Mean scores of each request, and which lie on the front."""
    if not known.shape[1]:
        return []
    means = known.mean(axis=1)
    return [
        {"name": name, "values": _named(point, scored), "on_front": bool(front)}
        for name, point, front in zip(names, means, non_dominated(means), strict=True)
    ]


def _named(point: Floats, scored: Sequence[Objective]) -> dict[str, float]:
    return {each.name: float(value) for each, value in zip(scored, point, strict=True)}


def distances(path: Path, scored: Sequence[Objective]) -> dict[str, float | None]:
    """Mean |obtained - asked| of a file of scored answers, over all and by the kind of request.

    Over the scored objectives that were asked for; `None` where nothing was obtained.
    """
    found: dict[str, list[float]] = {"all": []}
    for row in read_rows(path):
        for each, values in zip(row.completions, scores_of(row.completions, scored), strict=True):
            kind, asked = each.extra[ASKED]["kind"], each.extra[ASKED]["asked"]
            pairs = zip(scored, values, strict=True)
            gaps = [abs(value - asked[one.name]) for one, value in pairs if one.name in asked and np.isfinite(value)]
            found.setdefault(kind, [])
            if gaps:
                found[kind].append(float(np.mean(gaps)))
                found["all"].append(float(np.mean(gaps)))
    return {kind: float(np.mean(own)) if own else None for kind, own in found.items()}
