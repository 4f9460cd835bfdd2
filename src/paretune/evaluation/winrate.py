"""Win, tie and loss of answers against the chosen completion: per objective, and jointly.

Values are normalised (1 is the wanted end). A difference within `MARGIN` is a tie. Jointly a win is at least as good in
all objectives and better in one, a tie is a tie in all, the rest are losses. The multi-objective win rate is the mean
over objectives of wins and half the ties; `win_only` counts wins alone, as the SGA paper does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Floats
from paretune.evaluation.scoring import row_mean

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


def per_prompt_wins(answers: Floats, chosen: Floats, margin: float = MARGIN, *, ties: float = 0.5) -> Floats:
    """Mean over objectives of wins and `ties` of the ties [n]; values [n, m], missing ones left out, NaN if all are."""
    results = outcomes(answers, chosen, margin)
    worth = np.where(results > 0, 1.0, np.where(results == 0, ties, 0.0))
    return row_mean(np.where(np.isfinite(results), worth, np.nan))
