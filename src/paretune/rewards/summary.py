"""What scoring found: per objective numbers, and warnings about objectives that will not train well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paretune.data.rows import Row
from paretune.profile import Objective
from paretune.rewards.lexical import count_words

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
SATURATED = 0.5
"""This share of scores at the highest or the lowest value is a saturated objective."""
LENGTH_LIMIT = 0.8
DUPLICATE = 0.98
_SQUARABLE = 1e140
_LENGTHS = ("lexical:brevity", "lexical:length")


@dataclass
class ObjectiveSummary:
    """Raw scores of one objective. Numbers are None where there is no score (or, for correlations, no spread).

    `disagreement` is the mean of what an ensemble's details say of its members' disagreement, None where none do.
    """

    name: str
    spec: str
    direction: str
    n: int
    missing: int
    mean: float | None
    std: float | None
    quantiles: dict[str, float]
    length_correlation: float | None
    disagreement: float | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass
class ScoreSummary:
    """Rows and completions scored, rows dropped as bad, and a summary an objective.

    `correlations` are Spearman's, of every two objectives that the completions have scores of now, also those they had
    before; `counts` is what rewards counted (requests, tokens), by objective.
    """

    rows: int
    completions: int
    objectives: list[ObjectiveSummary]
    correlations: dict[str, dict[str, float | None]] = field(default_factory=dict)
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    bad_rows: int = 0
    bad_reasons: dict[str, int] = field(default_factory=dict)
    out: str = ""

    @property
    def warnings(self) -> list[str]:
        """All warnings, each with its objective's name."""
        return [f"{item.name}: {text}" for item in self.objectives for text in item.warnings]


class ScoreTable:
    """Scores of `completions` completions by objective as float64 arrays, NaN where there is none; filled row by row.

    All that is kept of the rows: 8 bytes a completion and objective, and 8 for its number of words.
    """

    def __init__(self, completions: int, names: Iterable[str]) -> None:
        self.lengths = np.zeros(completions)
        self.scores = {name: np.full(completions, np.nan) for name in names}
        self._filled = 0
        self._disagreements: dict[str, tuple[float, int]] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Take in the scores and lengths of rows."""
        for completion in (completion for row in rows for completion in row.completions):
            at = self._filled
            self._filled += 1
            self.lengths[at] = count_words(completion.text)
            for name, score in completion.scores.items():
                if score is not None and name in self.scores:
                    self.scores[name][at] = score
            self._add_details(completion.extra.get("details"))

    def _add_details(self, details: Any) -> None:
        for name, item in details.items() if isinstance(details, dict) else ():
            value = item.get("disagreement") if isinstance(item, dict) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                mean, count = self._disagreements.get(name, (0.0, 0))
                self._disagreements[name] = (mean + (value - mean) / (count + 1), count + 1)

    def disagreement(self, name: str) -> float | None:
        """The mean disagreement that an objective's details tell."""
        return self._disagreements[name][0] if name in self._disagreements else None


def summarise(table: ScoreTable, objectives: Sequence[Objective]) -> list[ObjectiveSummary]:
    """A summary of each objective's raw scores over all completions of the table."""
    return [_summary(objective, table) for objective in objectives]


def correlate(
    table: ScoreTable, objectives: Sequence[Objective], summaries: Sequence[ObjectiveSummary]
) -> dict[str, dict[str, float | None]]:
    """Spearman's correlations of every two columns of the table; summaries of duplicates get a warning."""
    ranks = {name: None if np.isnan(scores).any() else _ranks(scores) for name, scores in table.scores.items()}
    names = list(table.scores)
    found: dict[str, dict[str, float | None]] = {name: {} for name in names}
    for at, one in enumerate(names):
        left = ranks[one]
        for other in names[: at + 1]:
            right = ranks[other]
            if left is not None and right is not None:  # ranked once, where no pair has to leave anything out
                same = _pearson(left, right)
            else:
                same = spearman(table.scores[one], table.scores[other])
            found[one][other] = found[other][one] = same
    _warn_duplicates(objectives, summaries, found)
    return found


def _summary(objective: Objective, table: ScoreTable) -> ObjectiveSummary:
    scores = table.scores[objective.name]
    have = ~np.isnan(scores)
    found = scores[have]
    peak = float(np.abs(found).max(initial=0.0))
    unit = peak if peak > _SQUARABLE else 1.0  # sums and squares of larger numbers would overflow
    parts = found / unit
    summary = ObjectiveSummary(
        objective.name,
        objective.spec,
        objective.direction,
        n=int(have.sum()),
        missing=int((~have).sum()),
        mean=float(parts.mean() * unit) if len(found) else None,
        std=float(parts.std() * unit) if len(found) else None,
        quantiles={f"{q:g}": float(x * unit) for q, x in zip(QUANTILES, np.quantile(parts, QUANTILES), strict=True)}
        if len(found)
        else {},
        length_correlation=spearman(scores, table.lengths),
        disagreement=table.disagreement(objective.name),
    )
    _warn(summary, found)
    return summary


def _warn(summary: ObjectiveSummary, found: np.ndarray) -> None:
    if not len(found):
        summary.warnings.append("no completion could be scored")
        return
    if summary.missing:
        summary.warnings.append(f"{summary.missing} of {summary.n + summary.missing} completions could not be scored")
    if found.min() == found.max():
        summary.warnings.append(f"constant: all scores are {found[0]:g}; it cannot guide anything")
        return
    top, bottom = float((found == found.max()).mean()), float((found == found.min()).mean())
    if max(top, bottom) > SATURATED:
        end = "highest" if top >= bottom else "lowest"
        summary.warnings.append(f"saturated: {max(top, bottom):.0%} of scores are at the {end} value")
    length = summary.length_correlation
    if length is not None and abs(length) > LENGTH_LIMIT and summary.spec not in _LENGTHS:
        summary.warnings.append(f"mostly measures length (rank correlation {length:.2f} with the number of words)")


def _warn_duplicates(
    objectives: Sequence[Objective],
    summaries: Sequence[ObjectiveSummary],
    found: dict[str, dict[str, float | None]],
) -> None:
    """Each pair is told once, at the later one; scores that the rows had before come first."""
    new = {objective.name: objective for objective in objectives}
    names = [*(name for name in found if name not in new), *new]
    for summary in summaries:
        for other in names[: names.index(summary.name)]:
            same = found[summary.name][other]
            if same is not None and abs(same) > DUPLICATE and new[summary.name].spec != f"column:{other}":
                summary.warnings.append(f"duplicates '{other}' (rank correlation {same:.2f}); drop one of them")


def spearman(left: np.ndarray, right: np.ndarray) -> float | None:
    """Spearman's rank correlation over the places where both are numbers; None under three, or without spread."""
    have = ~(np.isnan(left) | np.isnan(right))
    return _pearson(_ranks(left[have]), _ranks(right[have]))


def _pearson(a: np.ndarray, b: np.ndarray) -> float | None:
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks with ties at their mean."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[places]
    return ranks
