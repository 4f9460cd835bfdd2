"""What rows say of their answers, objective by objective: pairs (this answer before that one) and ratings.

Pairs come from the labels chosen and rejected (about the objective `preference`), from a row's `preferences`, and,
where asked for, from ratings that differ. Ratings are the completions' scores. What an objective lacks plays no part.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from paretune.data import Row
from paretune.data.pairs import objectives_of
from paretune.errors import InputError, did_you_mean
from paretune.profile import Objective, check_names
from paretune.reward_model.config import RewardConfig
from paretune.reward_model.description import LOGIT, ORDINAL, RATING

MOST_LEVELS = 10
"""An ordinal loss wants at most this many distinct ratings."""
LARGEST, FINEST = 1e30, 1e-5
"""Rewards are float32 and given in the ratings' unit: bounds of the ratings' size, and of their deviation beside it."""


@dataclass(frozen=True)
class Comparison:
    """Of a row's completions, `winner` is better in an objective than `loser` (indices); `margin` as in `losses`."""

    winner: int
    loser: int
    objective: int
    margin: float = 0.0


@dataclass(frozen=True)
class Rating:
    """A completion's raw score in an objective."""

    answer: int
    objective: int
    value: float


@dataclass(frozen=True)
class RatingScale:
    """Statistics of an objective's ratings in the training part; `levels` are the distinct ones, if they are few."""

    mean: float
    std: float
    levels: tuple[float, ...]

    @classmethod
    def fit(cls, values: Sequence[float], name: str) -> RatingScale:
        """Raises `InputError` for ratings that are all equal: nothing can be learnt from them."""
        if min(values) == max(values):
            raise InputError(
                f"all {len(values)} ratings of objective '{name}' equal {values[0]:g}, so nothing can be learnt from "
                "them; leave the objective out, or learn from pairs alone (--from pairs)"
            )
        try:
            mean = math.fsum(values) / len(values)
            std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        except OverflowError:
            mean = std = math.inf
        if not (abs(mean) < LARGEST and 1 / LARGEST < std < LARGEST) or std < FINEST * abs(mean):
            raise InputError(
                f"the ratings of objective '{name}' lie between {min(values):g} and {max(values):g}, and float32 "
                f"cannot tell such numbers apart (mean {mean:g}, deviation {std:g}); subtract a constant, or give "
                "them another unit"
            )
        distinct = sorted(set(values))
        return cls(mean, std, tuple(distinct) if len(distinct) <= MOST_LEVELS else ())


@dataclass
class Supervision:
    """What is learnt of each objective, settled on the training part: `scales` [M], `None` without ratings."""

    objectives: list[Objective]
    config: RewardConfig
    scales: list[RatingScale | None] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The objectives' names."""
        return [each.name for each in self.objectives]

    @property
    def units(self) -> list[str]:
        """What the rewards of each objective are (see `head`)."""
        rated = ORDINAL if self.config.loss == "ordinal" else RATING
        return [rated if scale is not None and self.rates else LOGIT for scale in self.scales]

    @property
    def rates(self) -> bool:
        """Are ratings themselves learnt?"""
        return self.config.source != "pairs" and self.config.rating_weight > 0

    @property
    def levels(self) -> list[tuple[float, ...]]:
        """The levels of ordinal objectives; empty for others."""
        return [
            scale.levels if unit == ORDINAL and scale is not None else ()
            for scale, unit in zip(self.scales, self.units, strict=True)
        ]

    def fit(self, rows: Sequence[Row]) -> None:
        """Take the ratings' statistics from the training rows.

        Raises `InputError` for an objective without any supervision, equal ratings, or too many ordinal levels.
        """
        self.scales = []
        compared = {name for row in rows for name, *_ in stated_pairs(row, self.config)}
        for name in self.names:
            values = [value for row in rows for _, value in rated(row, name)]
            stated = self.config.source != "ratings" and name in compared
            if not stated and not (values and (self.rates or self.config.pairs_from_ratings)):
                raise InputError(f"no row of the training part says anything about objective '{name}'")
            needed = self.rates or self.config.pairs_from_ratings or self.config.margin == "ratings"
            scale = RatingScale.fit(values, name) if values and needed else None
            if scale is not None and self.rates and self.config.loss == "ordinal" and not scale.levels:
                raise InputError(
                    f"objective '{name}' has {len(set(values))} distinct ratings, and an ordinal loss takes at most "
                    f"{MOST_LEVELS}; use loss=mse",
                    field="loss",
                )
            self.scales.append(scale)

    def pairs(self, row: Row) -> tuple[list[Comparison], int]:
        """The row's comparisons, and how many were left out because both texts are the same."""
        found: list[Comparison] = []
        equal = 0
        index = {name: m for m, name in enumerate(self.names)}
        for name, winner, loser in self._all_pairs(row):
            if name not in index:
                continue
            if row.completions[winner].text == row.completions[loser].text:
                equal += 1
                continue
            found.append(Comparison(winner, loser, index[name], self._margin(row, index[name], winner, loser)))
        return list(dict.fromkeys(found)), equal

    def _all_pairs(self, row: Row) -> Iterator[tuple[str, int, int]]:
        if self.config.source != "ratings":
            yield from stated_pairs(row, self.config)
        if self.config.pairs_from_ratings:
            for objective in self.objectives:
                yield from self._from_ratings(row, objective)

    def _from_ratings(self, row: Row, objective: Objective) -> list[tuple[str, int, int]]:
        """Pairs of completions whose ratings differ by more than the margin, the better one by direction first."""
        name, sign = objective.name, -1 if objective.direction == "minimise" else 1
        found = [
            (name, i, j) if (one - two) * sign > 0 else (name, j, i)
            for (i, one), (j, two) in combinations(rated(row, name), 2)
            if abs(one - two) > self.config.pair_margin
        ]
        if self.config.max_pairs and len(found) > self.config.max_pairs:
            draw = random.Random(f"{self.config.seed}:{row.id}:{name}:pairs")
            found = [found[at] for at in sorted(draw.sample(range(len(found)), self.config.max_pairs))]
        return found

    def _margin(self, row: Row, objective: int, winner: int, loser: int) -> float:
        scale, name = self.scales[objective], self.names[objective]
        scores = [row.completions[k].scores.get(name) for k in (winner, loser)]
        if self.config.margin != "ratings" or scale is None or scores[0] is None or scores[1] is None:
            return 0.0
        return self.config.margin_scale * abs(scores[0] - scores[1]) / scale.std

    def ratings(self, row: Row) -> list[Rating]:
        """The row's ratings of objectives that have any, where ratings are learnt."""
        learnt = [(m, name) for m, (name, unit) in enumerate(zip(self.names, self.units, strict=True)) if unit != LOGIT]
        found = [Rating(k, m, value) for m, name in learnt for k, value in rated(row, name)]
        return sorted(found, key=lambda each: (each.answer, each.objective))


def rated(row: Row, name: str) -> list[tuple[int, float]]:
    """(index, score) of the row's completions that have a score in an objective."""
    found = [(k, each.scores.get(name)) for k, each in enumerate(row.completions)]
    return [(k, float(value)) for k, value in found if value is not None]


def stated_pairs(row: Row, config: RewardConfig) -> Iterator[tuple[str, int, int]]:
    """(objective, winner, loser) that the row itself states: its labels' and its `preferences`."""
    chosen, rejected = (
        [k for k, each in enumerate(row.completions) if each.label == label] for label in ("chosen", "rejected")
    )
    for winner in chosen:
        for loser in rejected:
            yield config.preference, winner, loser
    for name, pairs in row.preferences.items():
        for winner, loser in pairs:
            yield name, winner, loser


def choose_objectives(
    path: Path | str, rows: Sequence[Row], config: RewardConfig, names: Sequence[str], minimise: Collection[str] = ()
) -> list[Objective]:
    """The objectives to learn: `names` (a name begun by `-` is minimised), else all that the chosen source speaks of.

    Directions come from the objectives stored beside the rows; `minimise` are scores of which less is better where the
    data's format says so and nothing is stored. Raises `InputError` for a name that no row says anything about, and
    where there is nothing to learn from.
    """
    known = {each.name: each for each in objectives_of(path, rows, minimise)}
    found: dict[str, None] = {}
    if config.source != "pairs":
        scores = [each.scores for row in rows for each in row.completions]
        found |= dict.fromkeys(name for each in scores for name, value in each.items() if value is not None)
    if config.source != "ratings":
        found |= dict.fromkeys(name for row in rows for name, *_ in stated_pairs(row, config))
    if not found:
        what = {"pairs": "preferences", "ratings": "scores"}.get(config.source, "scores or preferences")
        raise InputError(
            f"no row has {what} to learn from: labels chosen and rejected, `preferences`, or completions' `scores`",
            file=path,
        )
    wanted = list(names) or [name for name in [*known, *found] if name in found]
    out = []
    for text in dict.fromkeys(wanted):
        name = text.removeprefix("-")
        if name not in found:
            raise InputError(f"no row says anything about objective '{name}'.{did_you_mean(name, found)}", file=path)
        objective = Objective(name, direction=known[name].direction if name in known else "maximise")
        out.append(replace(objective, direction="minimise") if text.startswith("-") else objective)
    check_names(out)
    return out
