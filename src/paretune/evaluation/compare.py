"""Several policies side by side: on the objectives all of them score, over the prompts all of them were tested on.

All are put on the first policy's scales, held against the first policy's targets and chosen completions, and resampled
by the same prompts, so that every difference is a paired one. Each answers in its natural condition; the points of its
sweep count for its own hypervolume, its inner product and the common front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretune.bootstrap import Bootstrap, Estimate, Floats, undefined
from paretune.evaluation.claims import difference_claim, summary_claims
from paretune.evaluation.control import subset
from paretune.evaluation.fronts import INCOMPLETE, corner_of, evenness, front_of
from paretune.evaluation.head import matrix
from paretune.evaluation.paired import LEVEL, bootstrap_p, holm, sign_flip_p
from paretune.evaluation.plan import no_common_prompt, shared_objectives
from paretune.evaluation.result import Evaluated
from paretune.evaluation.scoring import Scored, distances, normalised
from paretune.evaluation.sweeps import Point, inner_products
from paretune.evaluation.winrate import joint_outcomes, outcomes, per_prompt_wins, shares
from paretune.pareto.means import volumes
from paretune.profile import Objective, Profile

RESAMPLES_PER_TEST = 100
"""Resamples of hypervolumes for each test of them, at least: no p is below 2 / (resamples + 1), which Holm's correction
multiplies by the number of tests."""
FIGURES = ("multi_win", "hypervolume", "distance", "inner_product")


@dataclass(frozen=True)
class Entry:
    """One policy on the common prompts: values [n, m] of its natural answers, and of each further point of its sweep.

    `weighed`: of its points under weights, the weights and the inner products [n].
    """

    name: str
    done: Evaluated
    rows: list[int]
    natural: Floats
    points: list[tuple[Point, Floats]]
    weighed: list[tuple[Profile, Floats]]

    @property
    def stack(self) -> Floats:
        """All its points [points, n, m], the natural one first."""
        return np.stack([self.natural, *(values for _, values in self.points)])

    def text(self, scored: Scored, at: int) -> str:
        """The answer to a common prompt."""
        return scored.texts[self.rows[at]]


@dataclass(frozen=True)
class Comparison:
    """The policies brought to common prompts and objectives; its figures are computed once and tested pair by pair."""

    entries: list[Entry]
    objectives: list[Objective]
    chosen: Floats
    targets: Floats
    reference: Profile | None
    bootstrap: Bootstrap

    @property
    def names(self) -> list[str]:
        """Names of the common objectives."""
        return [each.name for each in self.objectives]

    @cached_property
    def wins(self) -> list[Floats]:
        """Multi-objective win rates against chosen, [n] a policy."""
        return [per_prompt_wins(each.natural, self.chosen) for each in self.entries]

    @cached_property
    def distance(self) -> list[Floats]:
        """Distances to the target, [n] a policy."""
        return [distances(each.natural, self.targets) for each in self.entries]

    @cached_property
    def products(self) -> list[Floats | None]:
        """Inner products, mean over the weights asked, [n] a policy; None for one that answered under no weights."""
        return [
            np.mean([values for _, values in each.weighed], axis=0) if each.weighed else None for each in self.entries
        ]

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Which prompts [n] have all scores of all points of all policies: only they count for hypervolumes."""
        stacks = np.concatenate([each.stack for each in self.entries])
        return np.asarray(np.isfinite(stacks).all(axis=(0, 2)), dtype=np.bool_)

    @cached_property
    def resamples(self) -> Bootstrap:
        """The bootstrap of hypervolumes, with enough resamples for a corrected p to be small."""
        tests = len(self.entries) * (len(self.entries) - 1) // 2
        return Bootstrap(max(self.bootstrap.times, RESAMPLES_PER_TEST * tests), self.bootstrap.seed)

    @cached_property
    def volumes(self) -> list[Floats] | None:
        """Hypervolumes of the sample and its resamples, [B + 1] a policy; None where no prompt counts."""
        if not self.known.any():
            return None
        corner = corner_of(self.reference, self.names)
        weights = self.resamples.weights(int(self.known.sum()))
        return [volumes(each.stack[:, self.known], corner, weights) for each in self.entries]

    def volume(self, at: int, minus: int | None = None) -> Estimate:
        """A policy's hypervolume, or by how much it exceeds another's."""
        if self.volumes is None:
            return undefined(INCOMPLETE)
        values = self.volumes[at] - (self.volumes[minus] if minus is not None else 0.0)
        return self.resamples.estimate(lambda _: values, int(self.known.sum()))


def compare(
    done: Mapping[str, Evaluated], bootstrap: Bootstrap, reference: Profile | None = None, data: Path | str = "data"
) -> dict[str, Any]:
    """The comparison of two or more policies as JSON.

    An objective is shared when all policies score it by the same reward in the same direction. Raises `InputError` when
    there is no shared objective, or no common prompt.
    """
    compared, notes = _aligned(done, bootstrap, reference, data)
    names = list(done)
    sizes = [len(each.test.pairs) for each in done.values()]
    figures = {entry.name: _figures(compared, at) for at, entry in enumerate(compared.entries)}
    tests = _tests(compared)
    corner = corner_of(reference, compared.names)
    front = _front(compared)
    return {
        "objectives": compared.names,
        "prompts": len(compared.chosen),
        "same_prompts": all(size == len(compared.chosen) for size in sizes),
        "conditions": {name: done[name].natural for name in names},
        "reference": dict(zip(compared.names, map(float, corner), strict=True)),
        "reference_rule": front["reference_rule"],
        "policies": figures,
        "head_to_head": [_duel(compared, *pair) for pair in combinations(range(len(names)), 2)],
        "tests": tests,
        "tests_of": {figure: sum(each["figure"] == figure for each in tests) for figure in FIGURES},
        "front": front,
        "claims": summary_claims(figures, tests),
        "notes": notes,
    }


def _aligned(
    done: Mapping[str, Evaluated], bootstrap: Bootstrap, reference: Profile | None, data: Path | str
) -> tuple[Comparison, list[str]]:
    """Common prompts and objectives, on the first policy's scales; and in words what that left out."""
    first = next(iter(done.values()))
    shared = shared_objectives({name: each.scored for name, each in done.items()})
    places = {name: {pair.row.id: i for i, pair in enumerate(each.test.pairs)} for name, each in done.items()}
    common = [key for key in next(iter(places.values())) if all(key in own for own in places.values())]
    if not common:
        raise no_common_prompt({name: len(own) for name, own in places.items()}, data)
    columns = [first.scored.index(each) for each in shared]
    rows = [places[next(iter(done))][key] for key in common]
    entries = []
    for name, each in done.items():
        own = [places[name][key] for key in common]

        def values(scored: Scored, own: Sequence[int] = own) -> Floats:
            return normalised([scored.raw[i] for i in own], shared)

        points = [(point, values(point.scored)) for point in each.points]
        names = [objective.name for objective in shared]
        weighed = [
            (point.ask.asked, found)
            for point, got in points
            if point.ask.kind == "weights" and not isinstance(found := inner_products(got, names, point.ask.asked), str)
        ]
        further = [(point, got) for point, got in points if point.scored is not each.natural_answers]
        entries.append(Entry(name, each, own, values(each.natural_answers), further, weighed))
    targets = matrix([first.test.targets[i] for i in rows], [each.name for each in shared])
    compared = Comparison(entries, shared, first.chosen[np.ix_(rows, columns)], targets, reference, bootstrap)
    return compared, _notes(done, shared, len(common))


def _notes(done: Mapping[str, Evaluated], shared: Sequence[Objective], prompts: int) -> list[str]:
    """What was left out, and on whose scales the rest stands."""
    lead, first = next(iter(done.items()))
    notes = []
    names = [each.name for each in shared]
    for name, each in done.items():
        missing = [own.name for own in each.scored if own.name not in names]
        if missing:
            notes.append(
                f"Of '{name}', {', '.join(missing)} is left out: not every policy scores it by the same reward."
            )
        if len(each.test.pairs) > prompts:
            notes.append(f"Of the {len(each.test.pairs)} test prompts of '{name}', {prompts} are common to all.")
    for name, each in list(done.items())[1:]:
        own = {objective.name: objective.scale for objective in each.scored}
        other = [objective.name for objective in shared if own[objective.name] != objective.scale]
        if other:
            notes.append(
                f"'{name}' was trained on another scale of {', '.join(other)}; it is judged on that of '{lead}'."
            )
        if each.test.about["targets"] != first.test.about["targets"]:
            notes.append(
                f"'{name}' was trained towards another target ({each.test.about['targets']}); it is judged by that of "
                f"'{lead}': {first.test.about['targets']}."
            )
    points = {name: 1 + len(each.further_points) for name, each in done.items()}
    if len(set(points.values())) > 1:
        said = ", ".join(f"'{name}' {count}" for name, count in points.items())
        notes.append(f"Hypervolumes are of different numbers of points ({said}), and more points can only add volume.")
    return notes


def _figures(compared: Comparison, at: int) -> dict[str, Any]:
    """One policy's figures on the common prompts."""
    entry, bootstrap = compared.entries[at], compared.bootstrap
    words = [len(entry.text(entry.done.natural_answers, i).split()) for i in range(len(entry.rows))]
    product = compared.products[at]
    means = entry.stack[:, compared.known].mean(axis=1) if compared.known.any() else None
    nothing = {"sparsity": None, "spacing": None, "points_why": INCOMPLETE}
    return {
        "condition": entry.done.natural,
        "multi_win": bootstrap.mean(compared.wins[at]).to_dict(),
        "win_only": bootstrap.mean(per_prompt_wins(entry.natural, compared.chosen, ties=0.0)).to_dict(),
        "joint": shares(joint_outcomes(outcomes(entry.natural, compared.chosen)), bootstrap),
        "distance": bootstrap.mean(compared.distance[at]).to_dict(),
        "words": bootstrap.mean(words).to_dict(),
        "hypervolume": compared.volume(at).to_dict(),
        **(evenness(means) if means is not None else nothing),
        "inner_product": bootstrap.mean(product).to_dict() if product is not None else None,
        "points": len(entry.stack),
    }


def _duel(compared: Comparison, one: int, two: int) -> dict[str, Any]:
    """Win, tie and loss of the first policy's natural answers against the second's."""
    first, second, bootstrap = compared.entries[one], compared.entries[two], compared.bootstrap
    results = outcomes(first.natural, second.natural)
    return {
        "first": first.name,
        "second": second.name,
        "objectives": {name: shares(results[:, i], bootstrap) for i, name in enumerate(compared.names)},
        "joint": shares(joint_outcomes(results), bootstrap),
        "multi_win": bootstrap.mean(per_prompt_wins(first.natural, second.natural)).to_dict(),
    }


def _tests(compared: Comparison) -> list[dict[str, Any]]:
    """Every pair of policies in every figure both have, corrected over the pairs of a figure."""
    out: list[dict[str, Any]] = []
    for figure in FIGURES:
        tests = [
            (one, two, *found)
            for one, two in combinations(range(len(compared.entries)), 2)
            if (found := _test(compared, figure, one, two)) is not None
        ]
        adjusted = holm([p for *_, p in tests])
        count = sum(p is not None for p in adjusted)
        for (one, two, difference, p), corrected in zip(tests, adjusted, strict=True):
            first, second = compared.entries[one].name, compared.entries[two].name
            significant = corrected is not None and corrected < LEVEL
            out.append(
                {
                    "first": first,
                    "second": second,
                    "figure": figure,
                    "difference": difference.to_dict(),
                    "p": p,
                    "p_adjusted": corrected,
                    "significant": significant,
                    "claim": difference_claim(figure, first, second, difference, corrected, count, shown=significant),
                }
            )
    return out


def _test(compared: Comparison, figure: str, one: int, two: int) -> tuple[Estimate, float | None] | None:
    """The paired difference, first minus second, and its p; None where one of the two lacks the figure."""
    bootstrap = compared.bootstrap
    if figure == "hypervolume":
        found = compared.volumes
        p = bootstrap_p(found[one][1:] - found[two][1:]) if found is not None else None
        if compared.known.sum() < 2:
            p = None  # one prompt resampled is that prompt
        return compared.volume(one, two), p
    if figure == "inner_product":
        gap = _product_gap(compared.entries[one], compared.entries[two])
    else:
        values = compared.wins if figure == "multi_win" else compared.distance
        gap = values[one] - values[two]
    return None if gap is None else (bootstrap.mean(gap), sign_flip_p(gap, bootstrap.seed))


def _product_gap(first: Entry, second: Entry) -> Floats | None:
    """Differences of inner products [n], mean over the weights that both answered under; None where there are none."""
    gaps = [
        one - two
        for asked, one in first.weighed
        for other, two in second.weighed
        if asked.keys() == other.keys() and all(abs(asked[name] - other[name]) < 1e-9 for name in asked)
    ]
    return np.mean(gaps, axis=0) if gaps else None


def _front(compared: Comparison) -> dict[str, Any]:
    """The common front of all policies' points, each with its answer to one and the same prompt."""
    entries, first = compared.entries, compared.entries[0]
    prompts = [first.done.test.prompts[i] for i in first.rows]
    (shown,) = subset(prompts, 1, 0)
    values: dict[str, Floats] = {}
    facts: list[dict[str, Any]] = []
    for entry in entries:
        own = [(entry.name, "natural", entry.done.natural_answers, entry.natural)]
        own += [(point.ask.name, point.ask.kind, point.scored, got) for point, got in entry.points]
        for name, kind, scored, got in own:
            values[str(len(facts))] = got
            example = {"prompt": prompts[shown][-1]["content"], "answer": entry.text(scored, shown)}
            facts.append({"name": name, "policy": entry.name, "kind": kind, "example": example})
    front = front_of(values, compared.names, compared.bootstrap, compared.reference)
    assert front is not None  # there is an objective and a policy
    front["points"] = [point | fact for point, fact in zip(front["points"], facts, strict=False)]
    return front
