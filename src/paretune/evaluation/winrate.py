"""Win, tie and loss of answers against the chosen completion: per objective, and jointly.

Values are normalised (1 is the wanted end). A difference within `MARGIN` is a tie. Jointly a win is at least as good in
all objectives and better in one, a tie is a tie in all, the rest are losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Floats

MARGIN = 0.01


def outcomes(answers: Floats, chosen: Floats, margin: float = MARGIN) -> Floats:
    """1 win, 0 tie, -1 loss, NaN where either value is missing; any shape."""
    gap = answers - chosen
    # a hair of slack, so that 0.51 against 0.5 is the tie that it reads as
    return np.where(np.isfinite(gap), np.sign(np.where(np.abs(gap) <= margin + 1e-12, 0.0, gap)), np.nan)


def joint_outcomes(results: Floats) -> Floats:
    """Per-objective outcomes [n, m] to joint ones [n]; NaN where an objective is missing."""
    known = np.isfinite(results).all(axis=1) & (results.shape[1] > 0)
    filled = np.where(np.isfinite(results), results, 0.0)
    joint = np.where((filled >= 0).all(axis=1), np.where((filled > 0).any(axis=1), 1.0, 0.0), -1.0)
    return np.where(known, joint, np.nan)


def shares(results: Floats, bootstrap: Bootstrap) -> dict[str, Any]:
    """Shares of wins, ties and losses of [n] outcomes, with intervals, as JSON."""
    known = np.isfinite(results)
    return {
        key: bootstrap.mean(np.where(known, results == value, np.nan)).to_dict()
        for key, value in (("win", 1), ("tie", 0), ("loss", -1))
    }


def win_rates(
    answers: Floats, chosen: Floats, names: Sequence[str], bootstrap: Bootstrap, margin: float = MARGIN
) -> dict[str, Any]:
    """Shares per objective and jointly for answers and chosen completions [n, m]."""
    results = outcomes(answers, chosen, margin)
    each = {name: shares(results[:, column], bootstrap) for column, name in enumerate(names)}
    return {"objectives": each, "joint": shares(joint_outcomes(results), bootstrap)}
