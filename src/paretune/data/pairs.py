"""From scored completions to preference pairs, and from scores to fitted scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paretune.data.rows import Completion, Row
from paretune.errors import InputError
from paretune.profile import Objective, Profile

TIE = 1e-9
"""Two completions closer than this, in mean or distance, are a tie."""


@dataclass(frozen=True)
class Pair:
    """A chosen and a rejected completion of a row, with their profiles (an objective without a score is absent)."""

    row: Row
    chosen: Completion
    rejected: Completion
    target: Profile
    rejected_profile: Profile


@dataclass
class PairReport:
    """What became of the rows: pairs by the rule that decided, and rows dropped by cause."""

    rows: int = 0
    by_label: int = 0
    by_wanted: int = 0
    by_mean: int = 0
    ties: int = 0
    too_few: int = 0

    @property
    def pairs(self) -> int:
        """Pairs built."""
        return self.by_label + self.by_wanted + self.by_mean

    def describe(self) -> str:
        """One line for a log."""
        dropped = f"{self.ties} ties, {self.too_few} without two scored completions"
        return f"{self.pairs} pairs of {self.rows} rows (dropped: {dropped})"


@dataclass(frozen=True)
class _Scored:
    completion: Completion
    profile: Profile

    @property
    def mean(self) -> float:
        return sum(self.profile.values()) / len(self.profile) if self.profile else 0.0


def build_pairs(rows: Sequence[Row], objectives: Sequence[Objective]) -> tuple[list[Pair], PairReport]:
    """At most one pair a row. `objectives` must be fitted; profiles hold their normalised scores.

    Labels decide where a row has both a chosen and a rejected completion; else the nearest against the farthest from
    `wanted` (mean absolute distance over the wanted objectives that are scored); else the highest against the lowest
    mean of normalised scores. A completion with some scores missing counts by those it has. Ties, pairs of equal texts
    and rows with fewer than two scored completions are dropped and counted. Labelled rows need no scores when
    `objectives` is empty (their profiles are then empty too).
    """
    report = PairReport()
    pairs: list[Pair] = []
    for row in rows:
        report.rows += 1
        scored = [_Scored(item, normalised_scores(item, objectives)) for item in row.completions]
        if objectives:
            scored = [item for item in scored if item.profile]
        rule, ranked = _ranked(row, scored)
        if not ranked:
            report.too_few += 1
            continue
        (worst_key, worst), (best_key, best) = ranked
        if best.completion.text == worst.completion.text or (rule != "by_label" and best_key - worst_key <= TIE):
            report.ties += 1
            continue
        setattr(report, rule, getattr(report, rule) + 1)
        pairs.append(Pair(row, best.completion, worst.completion, best.profile, worst.profile))
    return pairs, report


def normalised_scores(completion: Completion, objectives: Sequence[Objective]) -> Profile:
    """The completion's profile: normalised scores of those objectives it has a score for."""
    out: Profile = {}
    for objective in objectives:
        score = completion.scores.get(objective.name)
        if score is not None:
            out[objective.name] = objective.normalise(score)
    return out


def _ranked(row: Row, scored: list[_Scored]) -> tuple[str, list[tuple[float, _Scored]]]:
    """The rule that decides for this row, and its (worst, best) with their keys; nothing when there are not two."""
    chosen = [item for item in scored if item.completion.label == "chosen"]
    rejected = [item for item in scored if item.completion.label == "rejected"]
    if chosen and rejected:
        best, worst = max(chosen, key=lambda item: item.mean), min(rejected, key=lambda item: item.mean)
        return "by_label", [(worst.mean, worst), (best.mean, best)]
    if row.wanted:
        wanted = row.wanted
        near = [(-_distance(item.profile, wanted), item) for item in scored if item.profile.keys() & wanted.keys()]
        if near:
            return "by_wanted", _ends(near)
    return "by_mean", _ends([(item.mean, item) for item in scored if item.profile])


def _distance(profile: Profile, wanted: Mapping[str, float]) -> float:
    names = [name for name in wanted if name in profile]
    return sum(abs(profile[name] - wanted[name]) for name in names) / len(names)


def _ends(keyed: list[tuple[float, _Scored]]) -> list[tuple[float, _Scored]]:
    """The lowest and the highest; the first in the row's order where several are equal."""
    if len(keyed) < 2:
        return []
    return [min(keyed, key=lambda item: item[0]), max(keyed, key=lambda item: item[0])]


def fit_objectives(rows: Sequence[Row], objectives: Sequence[Objective]) -> list[Objective]:
    """The objectives with scales fitted on all their scores in `rows` (the training split); fitted ones are kept.

    Raises:
        InputError: an objective that no row has a score for, or whose scores are all equal.
    """
    return [objective if objective.scale is not None else _fitted(objective, rows) for objective in objectives]


def _fitted(objective: Objective, rows: Sequence[Row]) -> Objective:
    found: dict[str, list[float]] = {}
    for row in rows:
        for completion in row.completions:
            for name, score in completion.scores.items():
                if score is not None:
                    found.setdefault(name, []).append(score)
    if objective.name not in found:
        known = f"the rows have scores for: {', '.join(sorted(found))}" if found else "the rows have no scores at all"
        raise InputError(f"no row has a score for objective '{objective.name}'; {known}. Run `paretune score` first")
    return replace(objective).fitted(found[objective.name])
