"""Rewards that training did not use: did the answers gain by them too, or by the reward of training alone?

A policy can learn to please its reward rather than to be what the reward stands for (Goodhart's law, reward hacking).
So the gain of its natural answers over a baseline is told by both rewards, each in standard deviations of the data's
own completions (the chosen and the rejected one of each prompt) under it, by which rewards of different units compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Estimate, Floats, undefined
from paretune.data.rows import Row
from paretune.errors import InputError, did_you_mean
from paretune.evaluation.scoring import Scored, score_raw
from paretune.evaluation.testset import TestSet
from paretune.profile import Objective
from paretune.progress import Progress

UNIT = "standard deviations of the data's completions"


@dataclass(frozen=True)
class Judge:
    """A held-out reward `objective` (its name is the objective it stands beside, its direction its own)."""

    objective: Objective

    @property
    def text(self) -> str:
        """As the command line takes it."""
        sign = "-" if self.objective.direction == "minimise" else ""
        return f"{sign}{self.objective.name}={self.objective.spec}"


def read_judges(asked: Sequence[str], policies: dict[str, list[Objective]]) -> list[Judge]:
    """`NAME=SPEC` (`-NAME=SPEC`: less is better) each, checked against all policies' objectives by policy name.

    Raises `InputError` for a name that no policy has, a reward that one of them was trained on, one that cannot score
    new answers or be built, and one named twice.
    """
    from paretune.rewards import can_score_new, parse_objective
    from paretune.rewards.measure import check_reward

    out: list[Judge] = []
    known = dict.fromkeys(each.name for own in policies.values() for each in own)
    for text in asked:
        judge = Judge(parse_objective(text))
        own = judge.objective
        if own.name not in known:
            raise InputError(f"--judge-with: no policy has an objective '{own.name}'.{did_you_mean(own.name, known)}")
        for policy, objectives in policies.items():
            if any(_alike(own.spec, each.spec) for each in objectives):
                raise InputError(
                    f"--judge-with: {own.spec} is a reward that '{policy}' was trained on, so it cannot tell whether "
                    "the gain holds elsewhere; name a reward that training did not use"
                )
        if not can_score_new(own):
            raise InputError(f"--judge-with: {own.spec} holds stored scores and cannot score a new answer")
        check_reward(own)
        if judge in out:
            raise InputError(f"--judge-with: {judge.text} is given twice")
        out.append(judge)
    return out


def _alike(one: str, two: str) -> bool:
    """The same spec, spaces aside."""
    return bool(one) and "".join(one.split()) == "".join(two.split())


def held_out(
    judges: Sequence[Judge],
    objectives: Sequence[Objective],
    test: TestSet,
    natural: Scored,
    base: Sequence[str] | None,
    bootstrap: Bootstrap,
    progress: Progress,
) -> list[dict[str, Any]]:
    """What each judge says of a policy, as JSON; a judge of an objective that the policy lacks is left out.

    `objectives` are the policy's own, with the rewards of training; `base` the base model's answers, or None where
    there is no base model to ask: then the data's chosen completions are the baseline.
    """
    chosen = [pair.chosen.text for pair in test.pairs]
    rejected = [pair.rejected.text for pair in test.pairs]
    texts = _Texts(test.rows, natural.texts, chosen if base is None else list(base), [*chosen, *rejected])
    out, gains = [], dict[str, Estimate]()
    for judge in judges:
        trained = next((each for each in objectives if each.name == judge.objective.name), None)
        if trained is None:
            continue
        if trained.name not in gains:  # two judges may stand beside the same objective
            gains[trained.name] = _gain(trained, texts, bootstrap, progress)
        on_trained, on_judge = gains[trained.name], _gain(judge.objective, texts, bootstrap, progress)
        against = "chosen" if base is None else "base model"
        flag = on_trained.above_zero and on_judge.value is not None and not on_judge.above_zero
        out.append(
            {
                "objective": trained.name,
                "trained_spec": trained.spec or "with the data",
                "judge_spec": judge.objective.spec,
                "gain_trained": on_trained.to_dict(),
                "gain_held_out": on_judge.to_dict(),
                "unit": UNIT,
                "against": against,
                "claim": claim(trained.name, judge.objective.spec, on_trained, on_judge, against),
                "flag": flag,
            }
        )
    return out


@dataclass(frozen=True)
class _Texts:
    """What a reward is asked about: n answers, n of the baseline, and the data's 2n completions."""

    rows: list[Row]
    answers: list[str]
    baseline: list[str]
    data: list[str]

    def scored(self, objective: Objective, progress: Progress) -> tuple[Floats, Floats, Floats]:
        """Raw scores of the three, NaN where there is none."""
        texts = [*self.answers, *self.baseline, *self.data]
        found = [each[objective.name] for each in score_raw([*self.rows] * 4, texts, [objective], progress)]
        values = np.array([np.nan if each is None else each for each in found], dtype=np.float64)
        n = len(self.rows)
        return values[:n], values[n : 2 * n], values[2 * n :]


def _gain(objective: Objective, texts: _Texts, bootstrap: Bootstrap, progress: Progress) -> Estimate:
    """Mean gain of the answers over the baseline, in the unit; positive is the wanted way."""
    from paretune.rewards import can_score_new

    if not can_score_new(objective):
        return undefined(f"{objective.spec or 'what came with the data'} cannot score a new answer")
    answers, baseline, data = texts.scored(objective, progress)
    spread = data[np.isfinite(data)]
    size = float(spread.std()) if len(spread) > 1 else 0.0
    if size < 1e-12:
        return undefined(f"the data's completions do not differ under {objective.spec}, so there is no unit")
    sign = -1.0 if objective.direction == "minimise" else 1.0
    return bootstrap.mean(sign * (answers - baseline) / size)


def claim(name: str, spec: str, trained: Estimate, judged: Estimate, against: str) -> str:
    """One sentence on whether a gain holds under the held-out reward."""
    over = "the base model" if against == "base model" else "the chosen completions"
    if trained.value is None or judged.value is None:
        return f"Whether a gain in {name} holds cannot be told: {trained.why or judged.why}."
    both = f"{_said(trained)} by the reward of training, {_said(judged)} by {spec} (in {UNIT}, over {over})"
    if trained.above_zero and judged.above_zero:
        return f"The gain in {name} holds under a reward that training did not use: {both}."
    if trained.above_zero:
        held = "it fell" if judged.below_zero else "no gain is shown"
        return f"The gain in {name} is the training reward's alone, a sign of reward hacking: {held} elsewhere; {both}."
    return f"No gain in {name} is shown by the reward of training: {both}."


def _said(estimate: Estimate) -> str:
    assert estimate.value is not None
    interval = f" [{estimate.low:+.2f}, {estimate.high:+.2f}]" if estimate.low is not None else ""
    return f"{estimate.value:+.2f}{interval}"
