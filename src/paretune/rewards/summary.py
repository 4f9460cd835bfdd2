"""What scoring found: per objective numbers, and warnings about objectives that will not train well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paretune.data.rows import Row
from paretune.profile import Objective
from paretune.rewards.lexical import words

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
SATURATED = 0.5
"""This share of scores at the highest or the lowest value is a saturated objective."""
LENGTH_LIMIT = 0.8
DUPLICATE = 0.98
_LENGTHS = ("lexical:brevity", "lexical:length")


@dataclass
class ObjectiveSummary:
    """Raw scores of one objective. Numbers are None where there is no score (or, for correlations, no spread)."""

    name: str
    spec: str
    direction: str
    n: int
    missing: int
    mean: float | None
    std: float | None
    quantiles: dict[str, float]
    length_correlation: float | None
    warnings: list[str] = field(default_factory=list)


@dataclass
class ScoreSummary:
    """Rows and completions scored, rows dropped as bad, and a summary an objective."""

    rows: int
    completions: int
    objectives: list[ObjectiveSummary]
    bad_rows: int = 0
    bad_reasons: dict[str, int] = field(default_factory=dict)
    out: str = ""

    @property
    def warnings(self) -> list[str]:
        """All warnings, each with its objective's name."""
        return [f"{item.name}: {text}" for item in self.objectives for text in item.warnings]


def summarise(rows: Sequence[Row], objectives: Sequence[Objective]) -> list[ObjectiveSummary]:
    """A summary of each objective's raw scores over all completions."""
    completions = [completion for row in rows for completion in row.completions]
    lengths = np.array([len(words(completion.text)) for completion in completions], dtype=float)
    table = {
        objective.name: np.array(
            [
                np.nan if item.scores.get(objective.name) is None else item.scores[objective.name]
                for item in completions
            ],
            dtype=float,
        )
        for objective in objectives
    }
    summaries = [_summary(objective, table[objective.name], lengths) for objective in objectives]
    _warn_duplicates(summaries, table)
    return summaries


def _summary(objective: Objective, scores: np.ndarray, lengths: np.ndarray) -> ObjectiveSummary:
    have = ~np.isnan(scores)
    found = scores[have]
    summary = ObjectiveSummary(
        objective.name,
        objective.spec,
        objective.direction,
        n=int(have.sum()),
        missing=int((~have).sum()),
        mean=float(found.mean()) if len(found) else None,
        std=float(found.std()) if len(found) else None,
        quantiles={f"{q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(found, QUANTILES), strict=True)}
        if len(found)
        else {},
        length_correlation=spearman(scores, lengths),
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


def _warn_duplicates(summaries: list[ObjectiveSummary], table: dict[str, np.ndarray]) -> None:
    for at, one in enumerate(summaries):
        for other in summaries[at + 1 :]:
            same = spearman(table[one.name], table[other.name])
            if same is not None and abs(same) > DUPLICATE:
                other.warnings.append(f"duplicates '{one.name}' (rank correlation {same:.2f}); drop one of them")


def spearman(left: np.ndarray, right: np.ndarray) -> float | None:
    """Spearman's rank correlation over the places where both are numbers; None under three, or without spread."""
    have = ~(np.isnan(left) | np.isnan(right))
    a, b = _ranks(left[have]), _ranks(right[have])
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks with ties at their mean."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: np.ndarray = (ends - (counts - 1) / 2)[places]
    return ranks
