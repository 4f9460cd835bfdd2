"""Answers measured: raw scores by the objectives' rewards, normalised by the policy's scales, distances to targets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paretune.bootstrap import Floats
from paretune.data.rows import Row
from paretune.errors import InputError, did_you_mean
from paretune.evaluation.conditions import clean
from paretune.profile import Objective
from paretune.progress import Progress

RawScores = list[dict[str, float | None]]
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Scored:
    """The answers of n prompts: generations, clean texts, raw scores, and normalised values [n, m] (NaN: none)."""

    generations: list[Any]
    texts: list[str]
    raw: RawScores
    values: Floats


def choose_objectives(
    fitted: Sequence[Objective], asked: Sequence[str | Objective] | None
) -> tuple[list[Objective], dict[str, str]]:
    """The objectives that score answers, and why the others do not.

    `asked`: names to keep; `name=spec` (or an `Objective`) keeps one and measures it by that reward, on the policy's
    own scale. By default all. A reward that only repeats a stored column, or none, cannot score a new answer.

    Raises `InputError`, before a single answer is generated, for a name that the policy does not have, a bad spec, and
    (unless a model would have to be loaded for it) a reward that cannot be built.
    """
    from paretune.rewards import can_score_new
    from paretune.rewards.measure import check_reward

    known = {objective.name: objective for objective in fitted}
    picked = dict(known)
    if asked:
        picked = dict(_picked(item, known) for item in asked)
    scored, unscored = [], {}
    for name in known:
        if name not in picked:
            unscored[name] = "not asked for"
        elif not picked[name].spec:
            unscored[name] = "it has no reward: its scores came with the data"
        elif not can_score_new(picked[name]):
            unscored[name] = f"{picked[name].spec} holds stored scores and cannot score a new answer"
        else:
            check_reward(picked[name])
            scored.append(picked[name])
    return scored, unscored


def _picked(item: str | Objective, known: dict[str, Objective]) -> tuple[str, Objective]:
    if isinstance(item, Objective):
        name, spec = item.name, item.spec
    else:
        given, _, spec = item.partition("=")
        name = given.strip().removeprefix("-")
    if name not in known:
        raise InputError(f"the policy has no objective '{name}'.{did_you_mean(name, known)}")
    if isinstance(item, str) and given.strip() != name and known[name].direction != "minimise":
        raise InputError(f"the policy was trained with more of '{name}' as better; write it without the minus")
    return name, replace(known[name], spec=spec.strip()) if spec.strip() else known[name]


def columns_of(rows: Sequence[Row]) -> Columns:
    """What the rows say besides prompt and completions, by name: Python rewards may ask for it."""
    names = dict.fromkeys(name for row in rows for name in row.extra)
    return {"id": [row.id for row in rows]} | {name: [row.extra.get(name) for row in rows] for name in names}


def measure_all(
    rows: Sequence[Row], batches: Sequence[Sequence[Any]], objectives: Sequence[Objective], progress: Progress
) -> list[Scored]:
    """Score the texts of several sets of generations, each with one for each row's prompt: rewards are built once."""
    texts = [[clean(generation.text) for generation in batch] for batch in batches]
    flat = [text for own in texts for text in own]
    raw, values = score([*rows] * len(batches), flat, objectives, progress)
    n = len(rows)
    return [
        Scored(list(batch), own, raw[i * n : (i + 1) * n], values[i * n : (i + 1) * n])
        for i, (batch, own) in enumerate(zip(batches, texts, strict=True))
    ]


def score(
    rows: Sequence[Row], texts: Sequence[str], objectives: Sequence[Objective], progress: Progress
) -> tuple[RawScores, Floats]:
    """Raw scores and normalised values [n, m] of texts; a score that is missing or not finite becomes None and NaN."""
    raw = score_raw(rows, texts, objectives, progress)
    return raw, normalised(raw, objectives)


def score_raw(
    rows: Sequence[Row], texts: Sequence[str], objectives: Sequence[Objective], progress: Progress
) -> RawScores:
    """Raw scores of texts, one for each row's prompt."""
    from paretune.rewards import score_texts

    if not objectives or not texts:
        return [{} for _ in texts]
    prompts = [row.prompt for row in rows]
    found = score_texts(prompts, list(texts), list(objectives), columns=columns_of(rows), progress=progress)
    return [{each.name: finite(scores.get(each.name)) for each in objectives} for scores in found]


def finite(value: float | None) -> float | None:
    """A finite float, or None."""
    return float(value) if value is not None and math.isfinite(value) else None


def normalised(raw: Sequence[dict[str, float | None]], objectives: Sequence[Objective]) -> Floats:
    """Raw scores on the policy's scales, [n, m]; NaN where there is none."""
    out = np.full((len(raw), len(objectives)), np.nan)
    for row, scores in enumerate(raw):
        for column, objective in enumerate(objectives):
            value = scores.get(objective.name)
            if value is not None and math.isfinite(value):
                out[row, column] = objective.normalise(value)
    return out


def row_mean(values: Floats) -> Floats:
    """Mean over columns [n] of [n, m], of what is there; NaN where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an empty row is NaN, as it should be
        return np.nanmean(values, axis=1) if values.shape[1] else np.full(len(values), np.nan)


def distances(values: Floats, targets: Floats) -> Floats:
    """Mean absolute difference to the target over the scored objectives, [n]; both [n, m], NaN masked."""
    return row_mean(np.abs(values - targets))
