"""From scored completions to preference pairs, by several rules, and from scores to fitted scales."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from paretune.data.rows import Completion, Row
from paretune.data.split import normalised_key
from paretune.data.views import weighted
from paretune.data.write import stored_objectives
from paretune.errors import InputError, check_number, check_whole, did_you_mean
from paretune.profile import Objective, Profile

TIE = 1e-9
"""Two completions closer than this, in mean or distance, are a tie."""

Rule = Literal["mean", "weights", "pareto", "best-random"]
"""What decides between completions that neither labels nor a wanted profile decide between."""


@dataclass(frozen=True)
class Pair:
    """A chosen and a rejected completion of a row, with their profiles (an objective without a score is absent).

    `gap` is by how much the chosen one won, in the measure that decided (mean, weighted mean or distance); 0 where
    labels did.
    """

    row: Row
    chosen: Completion
    rejected: Completion
    target: Profile
    rejected_profile: Profile
    gap: float = 0.0


@dataclass
class PairReport:
    """What became of the rows: pairs by what decided, and what was dropped, by cause.

    Rows without a pair: `ties` (equal in what decides, or equal texts), `too_few` (fewer than two completions with the
    scores that the rule needs), `below_margin`, `not_dominated` (`pareto`: no completion is better or equal in
    everything). Pairs: `further` (ties or below the margin, in rows that have another pair) and `over_cap`. `missing`
    counts completions without a score, by objective.
    """

    rows: int = 0
    by_label: int = 0
    by_wanted: int = 0
    by_mean: int = 0
    by_weights: int = 0
    by_pareto: int = 0
    by_best_random: int = 0
    ties: int = 0
    too_few: int = 0
    below_margin: int = 0
    not_dominated: int = 0
    further: int = 0
    over_cap: int = 0
    missing: dict[str, int] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        """Pairs built, those over the cap not counted."""
        return sum(self.built().values()) - self.over_cap

    def built(self) -> dict[str, int]:
        """Pairs by what decided."""
        return {name: value for name, value in vars(self).items() if name.startswith("by_") and value}

    def dropped(self) -> dict[str, int]:
        """Rows and pairs left out, by cause."""
        causes = ("ties", "too_few", "below_margin", "not_dominated", "further", "over_cap")
        return {name: getattr(self, name) for name in causes}

    def describe(self) -> str:
        """One line for a log."""
        words = {
            "below_margin": "below the margin",
            "not_dominated": "where no completion dominates another",
            "further": "further pairs of rows that have one",
            "over_cap": "pairs over the cap",
        }
        dropped = [f"{self.ties} ties", f"{self.too_few} without two scored completions"]
        dropped += [f"{count} {words[name]}" for name, count in self.dropped().items() if name in words and count]
        built = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.built().items())
        built = f"{built}; " if built else ""
        text = f"{self.pairs} pairs of {self.rows} rows ({built}dropped: {', '.join(dropped)})"
        missing = ", ".join(f"{count} for {name}" for name, count in self.missing.items())
        return f"{text}; scores missing: {missing}" if missing else text


@dataclass(frozen=True)
class _Scored:
    completion: Completion
    profile: Profile
    key: float = 0.0

    @property
    def mean(self) -> float:
        return sum(self.profile.values()) / len(self.profile) if self.profile else 0.0


_Duel = tuple[_Scored, _Scored, float]
"""Winner, loser, and by how much."""


def build_pairs(
    rows: Sequence[Row],
    objectives: Sequence[Objective],
    *,
    rule: str = "mean",
    weights: Mapping[str, float] | None = None,
    margin: float = 0.0,
    per_prompt: int | None = None,
    labels: bool = True,
    wanted: bool = True,
    seed: int = 0,
) -> tuple[list[Pair], PairReport]:
    """Preference pairs of scored rows. `objectives` must be fitted; profiles hold their normalised scores.

    Labels decide where a row has both a chosen and a rejected completion (unless `labels` is off); else the nearest
    against the farthest from the profile that the row wants (mean absolute distance over the wanted objectives that are
    scored; unless `wanted` is off); else `rule`:

    - `mean`: the highest against the lowest mean of normalised scores; one with some missing counts by those it has.
    - `weights`: the same by the mean under `weights` (`paretune.data.views.weighted`); all weighted scores are needed.
    - `pareto`: the chosen one dominates the rejected one (as good in every objective, better in one); of such pairs
      the one with the largest gain, summed over the objectives. Only completions scored for every objective count.
    - `best-random`: the highest mean against another one, drawn by (seed, row id).

    `margin`: the least gap in what decides (for `pareto` the mean gain); it does not touch labels. `per_prompt`: up to
    so many disjoint pairs a row (the best against the worst, the second best against the second worst, and so on), and
    at most so many over all rows of one prompt, those with the widest gaps; None is one pair a row and no bound over
    rows. Ties, pairs of equal texts and rows with fewer than two scored completions are dropped and counted. Labelled
    rows need no scores when `objectives` is empty (their profiles are then empty too).

    Raises:
        InputError: an unknown rule, weights that do not fit the objectives or are given with another rule, a margin
            below 0, or less than one pair a prompt.
    """
    _check(objectives, rule, weights, margin, per_prompt)
    report = PairReport()
    pairs: list[Pair] = []
    for row in rows:
        report.rows += 1
        scored = [_Scored(item, normalised_scores(item, objectives)) for item in row.completions]
        for objective in objectives:
            lacking = sum(objective.name not in item.profile for item in scored)
            if lacking:
                report.missing[objective.name] = report.missing.get(objective.name, 0) + lacking
        if objectives:
            scored = [item for item in scored if item.profile]
        decided, duels = _duels(row, scored, objectives, rule, weights, seed, labels=labels, wanted=wanted)
        _keep(pairs, report, row, decided, duels, margin, per_prompt or 1)
    if per_prompt is not None:
        pairs, report.over_cap = _capped(pairs, per_prompt)
    return pairs, report


def _check(
    objectives: Sequence[Objective],
    rule: str,
    weights: Mapping[str, float] | None,
    margin: float,
    per_prompt: int | None,
) -> None:
    if rule not in get_args(Rule):
        raise InputError(f"unknown rule of pairs '{rule}'.{did_you_mean(rule, get_args(Rule))}")
    if (rule == "weights") != bool(weights):
        raise InputError("the rule 'weights' needs a weight for an objective, and no other rule takes weights")
    names = [each.name for each in objectives]
    for name in weights or {}:
        if name not in names:
            raise InputError(f"a weight is given for '{name}', which is no objective here.{did_you_mean(name, names)}")
    if weights:
        weighted(dict.fromkeys(names, 0.0), weights)  # says what is wrong with them, if anything is
    check_number(margin, "the margin")
    if margin < 0:
        raise InputError(f"the margin must be 0 or more, found {margin}")
    if per_prompt is not None:
        check_whole(per_prompt, "pairs a prompt", least=1)


def _duels(
    row: Row,
    scored: list[_Scored],
    objectives: Sequence[Objective],
    rule: str,
    weights: Mapping[str, float] | None,
    seed: int,
    *,
    labels: bool,
    wanted: bool,
) -> tuple[str, Iterator[_Duel] | None]:
    """What decides for this row, and its disjoint duels, the widest first; None when no two can be compared."""
    chosen = [item for item in scored if item.completion.label == "chosen"]
    rejected = [item for item in scored if item.completion.label == "rejected"]
    if labels and chosen and rejected:
        best, worst = sorted(chosen, key=lambda item: -item.mean), sorted(rejected, key=lambda item: item.mean)
        return "by_label", ((one, other, math.inf) for one, other in zip(best, worst, strict=False))
    wish = row.wanted if wanted else None
    if wish:
        near = [replace(each, key=-_distance(each.profile, wish)) for each in scored if each.profile.keys() & wish]
        if near:
            return "by_wanted", _best_worst(near) if len(near) > 1 else None
    decided = f"by_{rule.replace('-', '_')}"
    scored = [item for item in scored if item.profile]
    if rule == "pareto":
        whole = [item for item in scored if len(item.profile) == len(objectives)]
        return decided, _dominating(whole) if len(whole) > 1 else None
    if rule == "weights" and weights:
        values = [(item, weighted(item.profile, weights)) for item in scored]
        keyed = [replace(item, key=value) for item, value in values if value is not None]
    else:
        keyed = [replace(item, key=item.mean) for item in scored]
    if len(keyed) < 2:
        return decided, None
    return decided, _best_random(keyed, f"{seed}:{row.id}") if rule == "best-random" else _best_worst(keyed)


def _best_worst(keyed: list[_Scored]) -> Iterator[_Duel]:
    """Best against worst, second against second worst, ...; the first in the row's order where several are equal."""
    best, worst = sorted(keyed, key=lambda item: -item.key), sorted(keyed, key=lambda item: item.key)
    return ((one, other, one.key - other.key) for one, other in zip(best, worst[: len(keyed) // 2], strict=False))


def _best_random(keyed: list[_Scored], key: str) -> Iterator[_Duel]:
    draw = random.Random(key)
    left = sorted(keyed, key=lambda item: -item.key)
    while len(left) > 1:
        best = left.pop(0)
        other = left.pop(draw.randrange(len(left)))
        yield best, other, best.key - other.key


def _dominating(whole: list[_Scored]) -> Iterator[_Duel]:
    """Pairs of which one dominates the other, the largest mean gain first, no completion twice."""
    found = [
        (one.mean - other.mean, i, j)
        for i, one in enumerate(whole)
        for j, other in enumerate(whole)
        if all(one.profile[name] >= other.profile[name] for name in one.profile)
        and one.mean - other.mean > TIE
        and one.completion.text != other.completion.text
    ]
    used: set[int] = set()
    for gain, i, j in sorted(found, key=lambda each: (-each[0], each[1:])):
        if not used & {i, j}:
            used |= {i, j}
            yield whole[i], whole[j], gain


def _keep(
    pairs: list[Pair],
    report: PairReport,
    row: Row,
    decided: str,
    duels: Iterator[_Duel] | None,
    margin: float,
    per_row: int,
) -> None:
    """Add up to `per_row` pairs of a row, or count why it has none: by its first, widest duel."""
    if duels is None:
        report.too_few += 1
        return
    causes: list[str] = []
    built = 0
    for best, worst, gap in itertools.islice(duels, per_row):
        if best.completion.text == worst.completion.text or gap <= TIE:
            causes.append("ties")
        elif gap < margin - TIE:
            causes.append("below_margin")
        else:
            gap = 0.0 if decided == "by_label" else gap
            pairs.append(Pair(row, best.completion, worst.completion, best.profile, worst.profile, gap))
            built += 1
    setattr(report, decided, getattr(report, decided) + built)
    if built:
        report.further += len(causes)
    else:
        cause = causes[0] if causes else "not_dominated"
        setattr(report, cause, getattr(report, cause) + 1)


def _capped(pairs: Sequence[Pair], most: int) -> tuple[list[Pair], int]:
    """The pairs with at most `most` a prompt, in order, and how many are left out; the widest gaps stay."""
    ranked = sorted(pairs, key=lambda pair: (-pair.gap, pair.row.id, pair.chosen.text, pair.rejected.text))
    seen: dict[str, int] = {}
    kept: set[int] = set()
    for pair in ranked:
        key = normalised_key(pair.row.prompt)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= most:
            kept.add(id(pair))
    return [pair for pair in pairs if id(pair) in kept], len(pairs) - len(kept)


def normalised_scores(completion: Completion, objectives: Sequence[Objective]) -> Profile:
    """The completion's profile: normalised scores of those objectives it has a score for."""
    out: Profile = {}
    for objective in objectives:
        score = completion.scores.get(objective.name)
        if score is not None:
            out[objective.name] = objective.normalise(score)
    return out


def _distance(profile: Profile, wanted: Mapping[str, float]) -> float:
    names = [name for name in wanted if name in profile]
    return sum(abs(profile[name] - wanted[name]) for name in names) / len(names)


def objectives_of(path: Path | str, rows: Sequence[Row], minimise: Collection[str] = ()) -> list[Objective]:
    """The objectives of rows: those stored beside the file, then one for every other score's name.

    `minimise`: scores of which less is better, where the data's format says so and nothing is stored.
    """
    stored = stored_objectives(path) or []
    known = {each.name for each in stored}
    names = dict.fromkeys(name for row in rows for each in row.completions for name in each.scores)
    fresh = [name for name in names if name not in known]
    return [
        *stored,
        *(Objective(name, direction="minimise" if name in minimise else "maximise") for name in fresh),
    ]


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
