"""What a reward model is worth on prompts it has not seen, with intervals over prompts.

Of pairs: accuracy, against the rules "the longer answer wins" and "the shorter answer wins"; accuracy where the shorter
answer is preferred (a model that has learnt length alone has none there); margins; and calibration. Of ratings:
Spearman's rank correlation over all answers and within prompts, and R2. Of all: how far rewards go with length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretune.bootstrap import Bootstrap, Estimate, Floats, weighted_r2, weighted_spearman
from paretune.data.split import normalised_key
from paretune.progress import NO_PROGRESS, Progress
from paretune.reward_model.description import LOGIT
from paretune.reward_model.examples import RewardExample
from paretune.reward_model.model import RewardModel

BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Edges of the predicted probabilities between which accuracy is given."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Judged:
    """Of one objective: held-out pairs [P] and ratings [R], each with the number of the prompt it is of.

    margin: by how much the winner's reward is the better one, in the objective's unit; longer: +1 where the winner has
    more words, -1 where it has fewer, else 0; truth and guess: given and predicted ratings; length_correlation [n]:
    within each prompt, NaN where there is none.
    """

    pair_prompt: Floats
    margin: Floats
    longer: Floats
    rating_prompt: Floats
    truth: Floats
    guess: Floats
    length_correlation: Floats


def validate(
    model: RewardModel, examples: Sequence[RewardExample], bootstrap: Bootstrap, *, progress: Progress = NO_PROGRESS
) -> dict[str, dict[str, Any]]:
    """Figures by objective; estimates are {value, low, high, n}. Objectives without held-out supervision have none."""
    out = {}
    judged = judge(model, examples, progress=progress)
    for name, unit, found in zip(model.names, model.units, judged, strict=True):
        told: dict[str, Any] = {"unit": unit}
        if len(found.margin):
            told |= of_pairs(found, bootstrap, calibrated=unit == LOGIT)
        if len(found.truth):
            told |= of_ratings(found, bootstrap)
        told["length_correlation"] = bootstrap.mean(found.length_correlation).to_dict()
        out[name] = told
    return out


def judge(model: RewardModel, examples: Sequence[RewardExample], *, progress: Progress = NO_PROGRESS) -> list[Judged]:
    """The model's word on every answer of the examples, beside what the data says, an objective each."""
    places = [(n, k) for n, each in enumerate(examples) for k in each.branches]
    texts = [examples[n].row.completions[k].text for n, k in places]
    raw = model.raw([examples[n].row.prompt for n, _ in places], texts, progress=progress)
    keys = [normalised_key(each.row.prompt) for each in examples]
    numbers = {key: at for at, key in enumerate(dict.fromkeys(keys))}  # a prompt may stand in several rows
    answers = _Answers(
        index={place: at for at, place in enumerate(places)},
        prompt=[numbers[key] for key in keys],
        values=model.module.head.values(raw).cpu().double().numpy(),
        ratings=model.module.head.ratings(raw).cpu().double().numpy(),
        length=np.array([len(text.split()) for text in texts], dtype=float),
    )
    return [
        _judged(examples, answers, m, -1.0 if each.direction == "minimise" else 1.0)
        for m, each in enumerate(model.objectives)
    ]


@dataclass(frozen=True)
class _Answers:
    """index: (example, completion) -> n; prompt: the prompt's number of each example; values, ratings [N, M]; length
    [N] in words."""

    index: dict[tuple[int, int], int]
    prompt: list[int]
    values: Floats
    ratings: Floats
    length: Floats


def _judged(examples: Sequence[RewardExample], answers: _Answers, m: int, sign: float) -> Judged:
    pairs, ratings = list[tuple[int, float, float]](), list[tuple[int, float, float]]()
    members: dict[int, list[int]] = {}
    for n, example in enumerate(examples):
        at = {k: answers.index[n, k] for k in example.branches}
        members.setdefault(answers.prompt[n], []).extend(at.values())
        for pair in (each for each in example.pairs if each.objective == m):
            winner, loser = at[pair.winner], at[pair.loser]
            margin = sign * (answers.values[winner, m] - answers.values[loser, m])
            pairs.append((answers.prompt[n], margin, np.sign(answers.length[winner] - answers.length[loser])))
        for each in (each for each in example.ratings if each.objective == m):
            ratings.append((answers.prompt[n], each.value, answers.ratings[at[each.answer], m]))
    pair_3P, rating_3R = np.array(pairs).reshape(-1, 3).T, np.array(ratings).reshape(-1, 3).T
    return Judged(
        pair_prompt=pair_3P[0],
        margin=pair_3P[1],
        longer=pair_3P[2],
        rating_prompt=rating_3R[0],
        truth=rating_3R[1],
        guess=rating_3R[2],
        length_correlation=np.array(
            [_spearman(answers.values[own, m], answers.length[own]) for own in members.values()]
        ),
    )


def _spearman(first: Floats, second: Floats) -> float:
    """Spearman's rank correlation of two or more values; NaN where either is constant."""
    return float(weighted_spearman(first, second, np.ones((1, len(first))))[0]) if len(first) > 1 else float("nan")


def of_pairs(found: Judged, bootstrap: Bootstrap, *, calibrated: bool) -> dict[str, Any]:
    """Figures of pairs; a tie counts half. Calibration is that of rewards trained as Bradley-Terry logits alone."""
    right = (np.sign(found.margin) + 1) / 2
    longer = (found.longer + 1) / 2
    short, long = found.longer < 0, found.longer > 0

    def mean(values: Floats, kept: NDArray[np.bool_] | None = None) -> dict[str, Any]:
        return mean_over_pairs(values, found.pair_prompt, bootstrap, kept).to_dict()

    out = {
        "pairs": len(right),
        "pair_prompts": len(set(found.pair_prompt)),
        "accuracy": mean(right),
        "accuracy_of_longer_wins": mean(longer),
        "accuracy_of_shorter_wins": mean(1 - longer),
        "accuracy_over_length_rule": mean(right - np.where(longer.mean() >= 0.5, longer, 1 - longer)),
        "accuracy_where_shorter_preferred": mean(right, short),
        "accuracy_where_longer_preferred": mean(right, long),
        "margin": {
            "mean": float(found.margin.mean()),
            **{f"{q:g}": float(np.quantile(found.margin, q)) for q in QUANTILES},
        },
    }
    return out | ({"calibration": calibration(found.margin)} if calibrated else {})


def mean_over_pairs(
    values: Floats, prompt_P: Floats, bootstrap: Bootstrap, kept: NDArray[np.bool_] | None = None
) -> Estimate:
    """Mean of values [P] with an interval over prompts, whose pairs are drawn together; `kept` [P] selects some."""
    if kept is not None:
        values, prompt_P = values[kept], prompt_P[kept]
    _, codes = np.unique(prompt_P, return_inverse=True)
    sums, counts = np.bincount(codes, values), np.bincount(codes).astype(float)
    return bootstrap.estimate(lambda weights: (weights @ sums) / (weights @ counts), len(sums), "there is no such pair")


def calibration(margin: Floats) -> dict[str, Any]:
    """Accuracy by the predicted probability of the likelier side; the expected calibration error (Guo et al. 2017)."""
    sure = 1 / (1 + np.exp(-np.abs(margin)))
    right = (np.sign(margin) + 1) / 2
    bins = []
    for low, high in pairwise(BINS):
        inside = (sure >= low) & ((sure < high) | (high == BINS[-1]))
        if inside.any():
            numbers = {"predicted": float(sure[inside].mean()), "accuracy": float(right[inside].mean())}
            bins.append({"from": low, "to": high, "pairs": int(inside.sum()), **numbers})
    error = sum(each["pairs"] * abs(each["predicted"] - each["accuracy"]) for each in bins) / len(margin)
    return {"expected_error": error, "bins": bins}


def of_ratings(found: Judged, bootstrap: Bootstrap) -> dict[str, Any]:
    """Figures of ratings; within prompts means over the prompts whose ratings differ."""

    def over_prompts(statistic: Callable[[Floats, Floats, Floats], Floats]) -> dict[str, Any]:
        prompts, codes = np.unique(found.rating_prompt, return_inverse=True)
        return bootstrap.estimate(
            lambda weights: statistic(found.truth, found.guess, weights[:, codes]), len(prompts), "it is constant"
        ).to_dict()

    within = []
    for prompt in np.unique(found.rating_prompt):
        own = found.rating_prompt == prompt
        within.append(_spearman(found.truth[own], found.guess[own]))
    return {
        "ratings": len(found.truth),
        "spearman": over_prompts(weighted_spearman),
        "spearman_within_prompts": bootstrap.mean(np.array(within)).to_dict(),
        "r2": over_prompts(weighted_r2),
    }
