"""Which completions a round trains on, and the rows that come of them.

`pareto`: of all known completions of a prompt (the data's, those of earlier rounds, this round's samples) those that no
other dominates. `ric`: samples at or above the 0.7 quantile of this round's samples in any reward (Yang et al.,
"Rewards-in-Context", ICML 2024). Completions keep the scores that they obtained, so each is trained on under the
profile it has, not the one it was sampled at.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paretune.bootstrap import Floats
from paretune.data import Completion, Row, prompt_key
from paretune.data.pairs import normalised_scores
from paretune.pareto import non_dominated
from paretune.profile import Objective

Keep = Literal["pareto", "ric"]
QUANTILE = 0.7
Mask = NDArray[np.bool_]
Pool = dict[str, list[Completion]]
"""Distinct completions of each prompt, by its key."""


def scores_of(completions: Sequence[Completion], objectives: Sequence[Objective]) -> Floats:
    """Normalised scores [n, m]; NaN where there is none."""
    profiles = [normalised_scores(each, objectives) for each in completions]
    values = [[profile.get(each.name, np.nan) for each in objectives] for profile in profiles]
    return np.array(values, dtype=np.float64).reshape(len(completions), len(objectives))


def on_front(values: Floats) -> Mask:
    """Of points [n, m] those that no other dominates; one without every score is on no front, and dominates none."""
    mask: Mask = np.asarray(np.isfinite(values).all(axis=1), dtype=np.bool_)
    if mask.any():
        mask[mask] = non_dominated(values[mask])
    return mask


def thresholds(values: Floats, quantile: float = QUANTILE) -> Floats:
    """Each objective's quantile [m] over the scores [n, m] that are there; infinite where none is."""
    columns = [column[np.isfinite(column)] for column in values.T]
    return np.array([np.quantile(column, quantile) if len(column) else np.inf for column in columns])


def above_any(values: Floats, bounds: Floats) -> Mask:
    """Of points [n, m] those at or above the bound [m] of any objective."""
    return np.asarray((np.nan_to_num(values, nan=-np.inf) >= bounds).any(axis=1))


def add_to_pool(pool: Pool, rows: Iterable[Row]) -> int:
    """Add the rows' completions; gives how many were known already, by their text."""
    known = 0
    for row in rows:
        own = pool.setdefault(prompt_key(row.prompt), [])
        texts = {each.text for each in own}
        for each in row.completions:
            known += each.text in texts
            if each.text not in texts:
                own.append(each)
                texts.add(each.text)
    return known


@dataclass
class Mixture:
    """A round's training rows, and how they came about: `counts` for the report."""

    rows: list[Row]
    counts: dict[str, Any] = field(default_factory=dict)


class Mixer:
    """Makes the rows of a round: of the prompts with a kept sample, and of the data.

    `pairs`: the method needs two completions a row, so one that stands alone keeps the lowest beside it.
    """

    def __init__(self, rule: Keep, scored: Sequence[Objective], *, pairs: bool, key: str) -> None:
        """`scored`: the objectives by which completions are compared; `key` names the round in ids and draws."""
        self.rule, self.scored, self.pairs, self.key = rule, scored, pairs, key
        self.counts: Counter[str] = Counter()

    def mix(
        self,
        prompts: Sequence[Row],
        earlier: Mapping[str, Sequence[Completion]],
        sampled: Pool,
        share: float,
        seed: int,
    ) -> Mixture:
        """The round's mixture. `prompts`: all training rows; `earlier`: what was known before the round, by prompt.

        `share` of the rows are the data's own, of prompts that the round has no row of as long as there are such.
        """
        pick = self._picker([each for own in sampled.values() for each in own])
        fresh: dict[str, Row] = {}
        for row in prompts:
            key = prompt_key(row.prompt)
            if key in sampled and key not in fresh:
                kept = self._kept(pick, earlier.get(key, ()), sampled[key])
                if kept:
                    fresh[key] = replace(row, id=f"{row.id}@{self.key}", completions=tuple(kept), preferences={})
        originals = self._originals(prompts, fresh, share, seed)
        rows = [*fresh.values(), *originals]
        counts = {"samples": self.counts["samples"], "prompts": len(fresh), "earlier": self.counts["earlier"]}
        more = {"rows": len(rows), "originals": len(originals), "counterparts": self.counts["counterparts"]}
        return Mixture(rows, counts | more)

    def _picker(self, population: Sequence[Completion]) -> Callable[[Sequence[Completion]], Mask]:
        """The rule, over the scored objectives: completions to a mask. `population`: what quantiles are taken of."""
        if self.rule == "pareto":
            return lambda completions: on_front(scores_of(completions, self.scored))
        bounds = thresholds(scores_of(population, self.scored))
        return lambda completions: above_any(scores_of(completions, self.scored), bounds)

    def _kept(
        self, pick: Callable[[Sequence[Completion]], Mask], earlier: Sequence[Completion], fresh: Sequence[Completion]
    ) -> list[Completion]:
        """The kept completions of a prompt, [] where no sample is among them."""
        known = [*earlier, *fresh] if self.rule == "pareto" else list(fresh)
        mask = pick(known)
        ours = int(mask[len(known) - len(fresh) :].sum())
        if not ours:
            return []
        self.counts["samples"] += ours
        self.counts["earlier"] += int(mask.sum()) - ours
        return self._in_pairs(known, mask, [*earlier, *fresh])

    def _in_pairs(self, known: Sequence[Completion], mask: Mask, others: Sequence[Completion]) -> list[Completion]:
        """The completions of the mask; where a method of pairs has one alone, the lowest other is added."""
        kept = [each for each, chosen in zip(known, mask, strict=True) if chosen]
        if not self.pairs or len(kept) != 1:
            return kept
        left = [each for each in others if each is not kept[0] and normalised_scores(each, self.scored)]
        if left:
            self.counts["counterparts"] += 1
            means = np.nanmean(scores_of(left, self.scored), axis=1)
            kept.append(left[int(np.argmin(means))])
        return kept

    def _originals(self, prompts: Sequence[Row], fresh: Mapping[str, Row], share: float, seed: int) -> list[Row]:
        """Rows of the data, filtered by the same rule, in a drawn order; rows of labels alone stay as they are."""
        wanted = round(len(fresh) * share / (1 - share))
        order = list(prompts)
        random.Random(f"{seed}:{self.key}:originals").shuffle(order)
        order.sort(key=lambda row: prompt_key(row.prompt) in fresh)  # stable: those without a row of the round first
        pick = self._picker([each for row in prompts for each in row.completions])
        out: list[Row] = []
        for row in order:
            if len(out) == wanted:
                break
            if filtered := self._filtered(row, pick):
                out.append(filtered)
        return out

    def _filtered(self, row: Row, pick: Callable[[Sequence[Completion]], Mask]) -> Row | None:
        completions = row.completions
        if any(each.label for each in completions) or row.preferences:
            return row
        if not completions:
            return None
        kept = self._in_pairs(completions, pick(completions), completions)
        return replace(row, completions=tuple(kept)) if kept else None
