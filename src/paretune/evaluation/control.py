"""Does the policy obey? Requested against obtained values, and whose profile a completion is likelier under."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paretune.bootstrap import (
    Bootstrap,
    Floats,
    undefined,
    weighted_mean,
    weighted_spearman,
)
from paretune.data import Pair
from paretune.data.rows import Messages, Row, prompt_key
from paretune.evaluation.asking import Asker
from paretune.evaluation.conditions import in_terms
from paretune.evaluation.scoring import Scored, measure_all
from paretune.profile import Objective, Profile
from paretune.progress import Progress

SWEEP = (0.1, 0.3, 0.5, 0.7, 0.9)
PROMPTS = 16
LIKELIHOOD_PROMPTS = 64
SAME = 1e-9
WEIGHT_IS_NO_VALUE = "a weight is requested and a value obtained, which are of different units"


def subset(prompts: Sequence[Messages], limit: int, seed: int) -> list[int]:
    """Indices of `limit` prompts, drawn by a hash of seed and prompt (so that row order does not matter), in order."""
    if limit >= len(prompts):
        return list(range(len(prompts)))

    def key(index: int) -> str:
        return hashlib.sha256(f"{seed}\x1f{prompt_key(prompts[index])}".encode()).hexdigest()

    return sorted(sorted(range(len(prompts)), key=key)[:limit])


@dataclass(frozen=True)
class Step:
    """One point of a sweep: what was pinned, and the scored answers of the subset's prompts."""

    objective: str
    requested: float
    scored: Scored


def sweep(policy: Any, rows: Sequence[Row], objectives: Sequence[Objective], ask: Asker) -> list[Step]:
    """Pin each objective to each value of `SWEEP`, sense the rest, answer and score; one call for all of it."""
    asked = [(objective.name, value) for objective in objectives for value in SWEEP]
    pins = [{name: value} for name, value in asked for _ in rows]
    answers, _ = ask(policy, [row.prompt for _ in asked for row in rows], "sensed", pins=pins)
    size = len(rows)
    scored = measure_all(
        rows, [answers[i * size : (i + 1) * size] for i in range(len(asked))], objectives, ask.progress
    )
    return [Step(name, value, each) for (name, value), each in zip(asked, scored, strict=True)]


def obedience(
    steps: Sequence[Step], objectives: Sequence[Objective], bootstrap: Bootstrap, *, weights: bool = False
) -> dict[str, Any]:
    """Per objective: Spearman pooled and within prompts, MAE, and the mean obtained for each request.

    Pooled, a request must tell the obtained value whatever the prompt; within prompts (the mean over them), turning it
    must move the answer to the same prompt. Where requests are `weights`, they may tell it but not equal it: no MAE.
    """
    out: dict[str, Any] = {}
    for column, objective in enumerate(objectives):
        own = [step for step in steps if step.objective == objective.name]
        requested = np.array([step.requested for step in own])
        obtained = np.stack([step.scored.values[:, column] for step in own], axis=1)  # [prompts, values]
        out[objective.name] = _curve(requested, obtained, bootstrap)
        if weights:
            out[objective.name]["mae"] = undefined(WEIGHT_IS_NO_VALUE).to_dict()
    return out


def _curve(requested: Floats, obtained: Floats, bootstrap: Bootstrap) -> dict[str, Any]:
    """The metrics of one objective; resampling draws prompts, each with all its requests."""
    n, k = obtained.shape
    known = np.isfinite(obtained).ravel()
    asked, got = np.tile(requested, n)[known], obtained.ravel()[known]

    def spread(weights: Floats) -> Floats:
        return np.repeat(weights, k, axis=1)[:, known]

    if not known.any():
        missing = undefined("no answer could be scored").to_dict()
        return {"prompts": n, "spearman": missing, "spearman_within": missing, "mae": missing, "curve": []}
    why = "the obtained values are constant, so their ranks say nothing"
    return {
        "prompts": n,
        "spearman": bootstrap.estimate(lambda w: weighted_spearman(asked, got, spread(w)), n, why).to_dict(),
        "spearman_within": bootstrap.mean(_within(requested, obtained)).to_dict(),
        "mae": bootstrap.estimate(lambda w: weighted_mean(np.abs(asked - got), spread(w)), n).to_dict(),
        "curve": [
            {"requested": float(value), "obtained": bootstrap.mean(obtained[:, index]).to_dict()}
            for index, value in enumerate(requested)
        ],
    }


def _within(requested: Floats, obtained: Floats) -> Floats:
    """Spearman [n] over each prompt's own requests; 0 where its answers never change, NaN with fewer than three."""
    out = np.full(len(obtained), np.nan)
    for row, values in enumerate(obtained):
        known = np.isfinite(values)
        if known.sum() >= 3:
            (rho,) = weighted_spearman(requested[known], values[known], np.ones((1, int(known.sum()))))
            out[row] = rho if np.isfinite(rho) else 0.0
    return out


def control_accuracy(
    policy: Any, pairs: Sequence[Pair], names: Sequence[str], bootstrap: Bootstrap, *, seed: int, progress: Progress
) -> dict[str, Any]:
    """Share of completions that are likelier under their own profile than under the other completion's; 0.5 is none.

    Each prompt gives two completions (chosen and rejected). Pairs whose profiles are equal, incomplete or read the same
    once rendered are left out and counted. A policy conditioned on weights is given those that stand for the profiles.
    """
    picked = [pairs[i] for i in subset([pair.row.prompt for pair in pairs], LIKELIHOOD_PROMPTS, seed)]
    whole = [pair for pair in picked if all(name in pair.target and name in pair.rejected_profile for name in names)]
    mine = in_terms(policy, [pair.target for pair in whole])
    theirs = in_terms(policy, [pair.rejected_profile for pair in whole])
    usable = [each for each in zip(whole, mine, theirs, strict=True) if _distinct(policy, each[1], each[2])]
    if not usable:
        why = "no prompt has two completions whose complete profiles differ"
        return undefined(why).to_dict() | {"left_out": len(picked)}
    prompts, texts, own, other = [], [], [], []
    for pair, one, two in usable:
        prompts += [pair.row.prompt] * 2
        texts += [pair.chosen.text, pair.rejected.text]
        own += [one, two]
        other += [two, one]
    under_own = np.array(policy.loglik(prompts, texts, own, progress=progress))
    under_other = np.array(policy.loglik(prompts, texts, other, progress=progress))
    finite = np.isfinite(under_own) & np.isfinite(under_other)
    right = np.where(finite, under_own > under_other, np.nan).reshape(len(usable), 2)
    per_prompt = np.where(np.isfinite(right).all(axis=1), right.mean(axis=1), np.nan)
    return bootstrap.mean(per_prompt).to_dict() | {"left_out": len(picked) - len(usable)}


def _distinct(policy: Any, mine: Profile, theirs: Profile) -> bool:
    """Profiles that differ, also in what the policy is told."""
    if all(abs(mine[name] - theirs[name]) <= SAME for name in mine):
        return False
    return bool(policy.renderer.profile_text(mine) != policy.renderer.profile_text(theirs))
