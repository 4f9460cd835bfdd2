"""What the sensing head should predict for a prompt: the profiles of its good completions.

The paper takes the chosen completion's scores, which lie near the ceiling wherever the chosen one is simply the best;
`pareto` and `top-k` take several good completions, `wanted` takes a person's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from paretune.data.pairs import Pair, normalised_scores
from paretune.pareto import non_dominated
from paretune.profile import Objective, Profile

Targets = Literal["chosen", "wanted", "pareto", "top-k"]

IN_WORDS = {
    "chosen": "the chosen completion's profile",
    "wanted": "the profile wanted for the prompt",
    "pareto": "the mean profile of the prompt's non-dominated completions",
    "top-k": "the mean profile of the prompt's completions with the highest mean score",
}
"""Each kind of target, for reports."""


def target_profiles(pair: Pair, objectives: Sequence[Objective], kind: str, top_k: int = 3) -> list[Profile]:
    """The profiles of the pair's good completions, at least one; values are rounded to two decimals, as the paper's.

    `chosen`: the chosen completion's. `wanted`: the row's own, completed by the chosen one's. `pareto`: those of the
    non-dominated completions among those scored for every objective. `top-k`: those of the `top_k` completions with
    the highest mean of normalised scores. A row in which nothing qualifies has the chosen completion's.
    """
    if kind == "wanted":
        good = [{**pair.target, **(pair.row.wanted or {})}]
    elif kind == "chosen":
        good = [dict(pair.target)]
    else:
        profiles = [normalised_scores(each, objectives) for each in pair.row.completions]
        good = _pareto(profiles, objectives) if kind == "pareto" else _highest(profiles, top_k)
    return [{name: round(value, 2) for name, value in each.items()} for each in good or [dict(pair.target)]]


def _pareto(profiles: Sequence[Profile], objectives: Sequence[Objective]) -> list[Profile]:
    names = [each.name for each in objectives]
    whole = [each for each in profiles if len(each) == len(names)]
    if not whole:
        return []
    on_front = non_dominated(np.array([[each[name] for name in names] for each in whole]))
    return [each for each, kept in zip(whole, on_front, strict=True) if kept]


def _highest(profiles: Sequence[Profile], count: int) -> list[Profile]:
    scored = [each for each in profiles if each]
    return sorted(scored, key=lambda each: -sum(each.values()) / len(each))[:count]


def mean_profile(profiles: Sequence[Profile]) -> Profile:
    """Mean over the profiles that have an objective; objectives that none has are absent."""
    names = dict.fromkeys(name for each in profiles for name in each)
    return {
        name: sum(each[name] for each in profiles if name in each) / sum(name in each for each in profiles)
        for name in names
    }
