"""One policy's part of a run: its answers under every condition and every point of its sweep, and all they amount to.

A policy is loaded once. While its adapter is still apart, the base model's answers and features are taken from it; then
the adapter is merged, and everything that it answers goes in a call for `sensed`, one for the other conditions, and one
for each kind of sweep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Estimate, Floats
from paretune.data import Row
from paretune.evaluation.asking import Asker
from paretune.evaluation.baseline import BaseAnswers, BaseModel, has_base, identity
from paretune.evaluation.conditions import choose_conditions, in_terms, on_weights, oracle_requests, profiles_of
from paretune.evaluation.control import Step, control_accuracy, obedience, subset, sweep
from paretune.evaluation.fronts import front_of, front_set
from paretune.evaluation.head import INTERVAL_LEVEL, Probe, head_quality, interval_ends, linear_probe, matrix
from paretune.evaluation.heldout import held_out
from paretune.evaluation.journal import Journal
from paretune.evaluation.plan import Plan
from paretune.evaluation.result import Evaluated, Settings
from paretune.evaluation.scoring import choose_objectives, distances, measure_all, normalised, score
from paretune.evaluation.summary import Answers, differences, distances_of, summarise
from paretune.evaluation.sweeps import Point, asks_for, centre, describe_point, run_sweep, share_of
from paretune.evaluation.testset import TestSet, load_test_set
from paretune.evaluation.verdict import decide, find_limits
from paretune.evaluation.winrate import per_prompt_wins, win_rates
from paretune.files import read_json
from paretune.profile import Objective
from paretune.progress import Progress

CENTRE = "centre"
_WEIGHED = (
    "It senses and is given weights, which sum to one, in place of values: a target of values goes in as the weights "
    "that stand for it (softmax of values / temperature), the head is judged by those of complete targets, and control "
    "asks for a weight, which is of another unit than the value obtained."
)


@dataclass
class Run:
    """What all policies of a run share: data, wishes, and the base models' answers, which are asked for once."""

    data: Path | str
    rows: Sequence[Row]
    settings: Settings
    plan: Plan
    progress: Progress
    bootstrap: Bootstrap
    journal: Journal
    answers: BaseAnswers = field(init=False)
    bases: dict[tuple[str, str, str], Evaluated] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = BaseAnswers(replace(self._ask("base"), journal=None))

    def _ask(self, *who: str) -> Asker:
        return Asker(who, self.settings.max_new_tokens, self.settings.seed, self.progress, self.journal)

    def policy(self, name: str, folder: Path) -> Evaluated:
        """All of it for one policy, which is freed on return; its base model's part goes into `bases`, if asked for."""
        from paretune.policy import load_policy

        start = perf_counter()
        policy, settings = load_policy(folder), self.settings
        test = load_test_set(
            policy,
            self.data,
            self.rows,
            split=settings.split,
            max_prompts=settings.max_prompts,
            room=settings.max_new_tokens,
            seed=settings.seed,
            allow_overlap=settings.allow_overlap,
            others=self.plan.others(name),
        )
        adapters = len(policy.peft.peft_config) if has_base(policy) else 0
        if settings.include_base:
            self._base(policy, test)
        base = None
        if self.plan.judges and has_base(policy):
            found, _ = self._ask("base", *identity(policy))(BaseModel(policy, self.answers), test.prompts, "none")
            base = [each.text for each in found]
        head = _head(policy, test, self.bootstrap, self.progress)
        if hasattr(policy, "fuse"):  # the base model was the last thing that needed the adapter apart
            policy.fuse()
        done = self._measured(policy, test, head, self._ask("policy", name))
        done.metrics["folder"] = str(folder)
        done.metrics["cost"] = {
            **training_cost(folder),
            "models_at_inference": int(getattr(policy, "models_at_inference", 1)),
            "adapters": adapters,
            **done.metrics["cost"],
        }
        if self.plan.judges:
            done.metrics["held_out"] = held_out(
                self.plan.judges, policy.objectives, test, done.natural_answers, base, self.bootstrap, self.progress
            )
        done.metrics["cost"]["evaluate_seconds"] = perf_counter() - start
        return done

    def _base(self, policy: Any, test: TestSet) -> None:
        """The base model of a policy, measured on the policy's test prompts, once for each distinct one."""
        if not has_base(policy):
            test.notes.append("It has no adapter to switch off, so there are no answers of its base model.")
        elif identity(policy) not in self.bases:
            start = perf_counter()
            own = replace(test, notes=[], train=[], train_targets=[])
            ask = self._ask("base", *identity(policy))
            done = self._measured(BaseModel(policy, self.answers), own, None, ask)
            nothing = dict.fromkeys(("train_seconds", "train_tokens", "train_steps", "peak_memory_mib"))
            done.metrics["cost"] = {**nothing, "models_at_inference": 1, "adapters": 0, **done.metrics["cost"]}
            done.metrics["cost"]["evaluate_seconds"] = perf_counter() - start
            done.metrics["notes"] = []  # that a base model takes no weights goes without saying
            self.bases[identity(policy)] = done

    def _measured(self, policy: Any, test: TestSet, head: dict[str, Any] | None, ask: Asker) -> Evaluated:
        """Answers, scores and figures of a policy, or of a base model seen as one."""
        settings, bootstrap, progress = self.settings, self.bootstrap, self.progress
        scored, unscored = choose_objectives(policy.objectives, settings.objectives)
        notes = test.notes
        asks = asks_for(policy, self.plan.weights, self.plan.profiles, notes)
        answers = _answer(policy, test, scored, settings, ask)
        points = run_sweep(policy, test.rows, asks, scored, ask) if asks else []
        answers |= _centre(policy, points, test, scored)
        swept: list[int] = []
        steps: list[Step] = []
        weighs = on_weights(policy)
        if policy.has_head and scored and settings.control_prompts > 0 and not (weighs and len(policy.objectives) == 1):
            swept = subset(test.prompts, settings.control_prompts, settings.seed)
            steps = sweep(policy, [test.rows[i] for i in swept], scored, ask)
        natural = next((each for each in ("sensed", CENTRE) if each in answers), next(iter(answers)))
        chosen = _chosen_values(policy, test, scored, progress)
        wished = in_terms(policy, test.targets)
        if weighs and policy.has_head:
            notes.append(_WEIGHED)
        done = Evaluated({}, test, scored, answers, steps, swept, natural, chosen, wished, points)
        done.metrics.update(
            {
                "folder": None,
                "method": policy.method,
                "base": policy.base,
                "has_head": policy.has_head,
                "conditioned_on": _conditioned_on(policy),
                "objectives": [objective.to_dict() for objective in policy.objectives],
                "scored": [objective.name for objective in scored],
                "unscored": unscored,
                "test": test.about,
                "natural": natural,
                **_metrics(policy, done, head, bootstrap),
                **_sweep_metrics(done, bootstrap, self.plan.reference),
                "control": obedience(steps, scored, bootstrap, weights=weighs) if steps else None,
                "control_accuracy": _accuracy(policy, test, bootstrap, settings, progress),
                "held_out": None,
                "notes": notes,
            }
        )
        return done


def _conditioned_on(policy: Any) -> str | None:
    """What a profile says of each objective to this policy; None for one that is given no profile."""
    if on_weights(policy):
        return "weights"
    return "values" if policy.has_head or getattr(policy, "takes_profile", False) else None


def training_cost(folder: Path) -> dict[str, float | None]:
    """What training cost, as the policy folder's metrics.json says it; null for what it does not say."""
    path = folder / "metrics.json"
    found = read_json(path) if path.is_file() else {}
    keys = {
        "train_seconds": "seconds",
        "train_tokens": "tokens",
        "train_steps": "steps",
        "peak_memory_mib": "peak_memory_mib",
    }
    out: dict[str, float | None] = {}
    for name, key in keys.items():
        value = found.get(key) if isinstance(found, dict) else None
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        out[name] = value if number else None
    return out


def _head(policy: Any, test: TestSet, bootstrap: Bootstrap, progress: Progress) -> dict[str, Any] | None:
    """Head quality on all objectives of the policy; None without a head."""
    if not policy.has_head:
        return None
    names = [objective.name for objective in policy.objectives]
    found = policy.predict(test.prompts, level=INTERVAL_LEVEL, progress=progress)
    sensed = matrix([each.profile for each in found], names)
    intervals = interval_ends([each.interval for each in found], names)
    probe: Probe | None = None
    if test.train:
        train = policy.features([pair.row.prompt for pair in test.train], progress=progress)
        ahead = policy.features(test.prompts, progress=progress)
        probe = linear_probe(train, matrix(in_terms(policy, test.train_targets), names), ahead, names)
    targets = matrix(in_terms(policy, test.targets), names)
    return head_quality(names, targets, sensed, policy.mean_profile, probe, bootstrap, intervals)


def _answer(
    policy: Any, test: TestSet, scored: Sequence[Objective], settings: Settings, ask: Asker
) -> dict[str, Answers]:
    """Answers of every condition, in the fixed order."""
    wanted = choose_conditions(settings.conditions, has_head=policy.has_head)
    targets = matrix(test.targets, [objective.name for objective in scored])
    made: dict[str, tuple[list[Any], float]] = {}
    if not policy.has_head:
        made["none"] = ask(policy, test.prompts, "none")
    else:
        if "sensed" in wanted:
            made["sensed"] = ask(policy, test.prompts, "sensed")
        # sensed went first: the others are given the very profiles it used (snapped as its renderer does)
        sensed = [answer.profile or {} for answer in made["sensed"][0]] if made else policy.sense(test.prompts)
        others = [name for name in wanted if name != "sensed"]
        oracle = oracle_requests(policy, test.targets, sensed)
        given = [profiles_of(name, oracle, sensed, policy.mean_profile, settings.seed) for name in others]
        if others:
            found, seconds = ask(policy, test.prompts * len(others), [profile for each in given for profile in each])
            n, total = len(test.prompts), sum(each.tokens for each in found)
            for at, name in enumerate(others):
                part = found[at * n : (at + 1) * n]
                made[name] = part, share_of(seconds, part, total)
    measured = measure_all(test.rows, [made[name][0] for name in wanted], scored, ask.progress)
    return {name: distances_of(each, targets, made[name][1]) for name, each in zip(wanted, measured, strict=True)}


def _centre(policy: Any, points: Sequence[Point], test: TestSet, scored: Sequence[Objective]) -> dict[str, Answers]:
    """The condition `centre` of a policy that has no head and was asked for weights: that point's very answers."""
    if policy.has_head or not points:
        return {}
    middle = centre([objective.name for objective in policy.objectives])
    targets = matrix(test.targets, [objective.name for objective in scored])
    for point in points:
        if point.ask.kind == "weights" and all(math.isclose(point.ask.asked[name], middle[name]) for name in middle):
            return {CENTRE: distances_of(point.scored, targets, point.seconds)}
    return {}


def _metrics(policy: Any, done: Evaluated, head: dict[str, Any] | None, bootstrap: Bootstrap) -> dict[str, Any]:
    """Verdict, ablation, head, wins and the front of the conditions."""
    names, test, answers, chosen = [each.name for each in done.scored], done.test, done.answers, done.chosen
    targets = matrix(test.targets, names)
    gaps = differences(answers, bootstrap)
    closer = (
        {name: _nearer(answers[name].distance, chosen, targets, bootstrap) for name in answers} if test.wanted else None
    )
    values = {name: each.scored.values for name, each in answers.items()}
    return {
        "verdict": decide(
            gaps, has_head=policy.has_head, scored=names, limits=_limits(answers, head, bootstrap)
        ).to_dict(),
        "conditions": {name: summarise(policy, each, targets, names, bootstrap) for name, each in answers.items()},
        "differences": {name: gap.to_dict() for name, gap in gaps.items()},
        "head": head,
        "chosen": {
            "scores": {name: bootstrap.mean(chosen[:, i]).to_dict() for i, name in enumerate(names)},
            "distance": bootstrap.mean(distances(chosen, targets)).to_dict(),
        },
        "wins": {name: win_rates(each, chosen, names, bootstrap) for name, each in values.items()},
        "multi_win": {name: bootstrap.mean(per_prompt_wins(each, chosen)).to_dict() for name, each in values.items()},
        "win_only": {
            name: bootstrap.mean(per_prompt_wins(each, chosen, ties=0.0)).to_dict() for name, each in values.items()
        },
        "closer_than_chosen": closer,
        "front": front_of(values, names, bootstrap),
    }


def _sweep_metrics(done: Evaluated, bootstrap: Bootstrap, reference: Mapping[str, float] | None) -> dict[str, Any]:
    """The sweep's points, the policy's own front, and the speed of its natural answers."""
    names = [each.name for each in done.scored]
    values = {done.natural: done.natural_answers.values}
    values |= {point.ask.name: point.scored.values for point in done.further_points}
    kinds = ["natural", *(point.ask.kind for point in done.further_points)]
    natural = done.answers[done.natural]
    tokens = sum(each.tokens for each in natural.scored.generations)
    return {
        "sweep": [describe_point(point, done.chosen, names, bootstrap) for point in done.points],
        "front_set": front_set(values, kinds, names, bootstrap, reference),
        "cost": {"tokens_per_second": tokens / natural.seconds if natural.seconds > 0 else None},
    }


def _nearer(distance: Floats, chosen: Floats, targets: Floats, bootstrap: Bootstrap) -> dict[str, Any]:
    """Share of answers that are closer to a person's wanted profile than the chosen completion is."""
    theirs = distances(chosen, targets)
    known = np.isfinite(distance) & np.isfinite(theirs)
    return bootstrap.mean(np.where(known, distance < theirs, np.nan)).to_dict()


def _chosen_values(policy: Any, test: TestSet, scored: Sequence[Objective], progress: Progress) -> Floats:
    """Normalised values [n, m] of the chosen completions; scored anew where the reward is not the policy's own."""
    values = normalised([pair.chosen.scores for pair in test.pairs], scored)
    own = {objective.name: objective.spec for objective in policy.objectives}
    changed = [objective for objective in scored if objective.spec != own[objective.name]]
    if changed:
        _, fresh = score(test.rows, [pair.chosen.text for pair in test.pairs], changed, progress)
        for column, objective in enumerate(changed):
            values[:, list(scored).index(objective)] = fresh[:, column]
    return values


def _limits(answers: Mapping[str, Answers], head: dict[str, Any] | None, bootstrap: Bootstrap) -> list[str]:
    """Where the limit lies, as far as the conditions run can tell."""

    def gap(far: str, near: str) -> Estimate | None:
        if far not in answers or near not in answers:
            return None
        return bootstrap.mean(answers[far].distance - answers[near].distance)

    gains = {
        name: Estimate(gain["value"], gain["low"], gain["high"], gain["n"])
        for name, gain in ((name, each["gain"]) for name, each in (head or {}).items() if "gain" in each)
    }
    return find_limits(gap("none", "oracle"), gap("sensed", "oracle"), gains)


def _accuracy(
    policy: Any, test: TestSet, bootstrap: Bootstrap, settings: Settings, progress: Progress
) -> dict[str, Any] | None:
    """Control accuracy; None for a policy that takes no profile."""
    if not policy.has_head:
        return None
    names = [objective.name for objective in policy.objectives]
    return control_accuracy(policy, test.pairs, names, bootstrap, seed=settings.seed, progress=progress)
