"""`paretune evaluate`: run the deciding ablation on policies, and write the numbers, the report and every answer.

Each policy answers its unseen test prompts under every condition; answers are scored, compared with the target profile
and with the chosen completion, and the verdict is said in words. The output folder appears whole or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Estimate, Floats
from paretune.data import Row, read_rows
from paretune.errors import InputError
from paretune.evaluation.compare import compare
from paretune.evaluation.conditions import choose_conditions, generate, profiles_of
from paretune.evaluation.control import PROMPTS, Step, control_accuracy, obedience, subset, sweep
from paretune.evaluation.head import INTERVAL_LEVEL, Probe, head_quality, interval_ends, linear_probe, matrix
from paretune.evaluation.output import command, versions, write
from paretune.evaluation.result import Evaluated, Settings
from paretune.evaluation.scoring import choose_objectives, distances, measure, normalised, score
from paretune.evaluation.summary import Answers, differences, distances_of, front_of, summarise
from paretune.evaluation.testset import TestSet, load_test_set
from paretune.evaluation.verdict import decide, find_limits
from paretune.evaluation.winrate import win_rates
from paretune.files import check_target_folder
from paretune.profile import Objective
from paretune.progress import NO_PROGRESS, Progress

FORMAT = 1


def evaluate(
    policies: Sequence[Path | str],
    data: Path | str,
    out: Path | str,
    *,
    conditions: Sequence[str] | None = None,
    objectives: Sequence[str | Objective] | None = None,
    max_prompts: int | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    split: str = "test",
    bootstrap: int = 1000,
    control_prompts: int = PROMPTS,
    skip_bad_rows: bool = False,
    allow_overlap: bool = False,
) -> dict[str, Any]:
    """Evaluate policy folders on the rows of `data` into the folder `out`; returns what metrics.json holds.

    `objectives` keeps some of a policy's objectives by name, or measures one by another reward (`name=spec`).
    `control_prompts` is how many prompts the sweeps of requested values use (0: no sweep); bad rows of the data raise
    unless `skip_bad_rows`. Test prompts that a policy was trained on, or nearly, raise unless `allow_overlap`, which
    leaves those rows out and counts them. Scores are normalised by each policy's own scales; intervals are 95%
    bootstrap intervals over prompts, from `bootstrap` resamples.

    Raises:
        InputError: no policy folder, data without two scored completions a prompt, fewer than two usable prompts,
            prompts of training among the test prompts, an unknown condition, objective or split, or an output folder
            that may not be replaced.
    """
    folders = [Path(folder) for folder in policies]
    _check(folders, data, out, overwrite, seed=seed, bootstrap=bootstrap, max_prompts=max_prompts)
    choose_conditions(conditions, has_head=True)
    settings = Settings(
        conditions=tuple(conditions) if conditions else None,
        objectives=tuple(objectives) if objectives else None,
        max_prompts=max_prompts,
        max_new_tokens=max_new_tokens,
        seed=seed,
        split=split,
        bootstrap=bootstrap,
        control_prompts=control_prompts,
        allow_overlap=allow_overlap,
    )
    rows = read_rows(data, skip_bad_rows=skip_bad_rows)
    done: dict[str, Evaluated] = {}
    for name, folder in zip(policy_names(folders), folders, strict=True):
        done[name] = _evaluate_policy(folder, data, rows, settings, progress or NO_PROGRESS)
    metrics = {
        "format": FORMAT,
        "data": str(data),
        "settings": settings.to_dict(),
        "versions": versions(),
        "command": command(folders, data, out, settings),
        "policies": {name: each.metrics for name, each in done.items()},
        "comparison": compare(done, Bootstrap(bootstrap, seed)) if len(done) > 1 else None,
    }
    write(metrics, done, out, overwrite)
    return metrics


def _check(
    folders: Sequence[Path],
    data: Path | str,
    out: Path | str,
    overwrite: bool,
    *,
    seed: int,
    bootstrap: int,
    max_prompts: int | None,
) -> None:
    """What can be refused before a model is loaded."""
    if not folders:
        raise InputError("no policy is given; name at least one policy folder")
    for folder in folders:
        if not (folder / "policy.json").is_file():
            raise InputError("is no policy folder (it has no policy.json)", file=folder)
    if seed < 0 or bootstrap < 1 or (max_prompts is not None and max_prompts < 2):
        found = f"found {seed}, {bootstrap} and {max_prompts}"
        raise InputError(f"seed must be 0 or more, bootstrap 1 or more, max_prompts 2 or more; {found}")
    target = Path(out).resolve()
    for used in [*folders, Path(data)]:
        if target == used.resolve() or target in used.resolve().parents:
            raise InputError(f"holds {used}, which is evaluated; choose another output folder", file=out)
    if (target / "policy.json").exists():
        raise InputError("is a policy folder; choose another output folder", file=out)
    check_target_folder(out, overwrite=overwrite)


def policy_names(folders: Sequence[Path]) -> list[str]:
    """A short distinct name for each folder: its own, else with its parents', else with a number."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = ["/".join(folder.resolve().parts[-2:]) for folder in folders]
    return [name if names.count(name) == 1 else f"{name} ({index + 1})" for index, name in enumerate(names)]


def _evaluate_policy(
    folder: Path, data: Path | str, rows: Sequence[Row], settings: Settings, progress: Progress
) -> Evaluated:
    """All of it for one policy, which is freed on return."""
    from paretune.policy import load_policy

    policy = load_policy(folder)
    test = load_test_set(
        policy,
        data,
        rows,
        split=settings.split,
        max_prompts=settings.max_prompts,
        room=settings.max_new_tokens,
        seed=settings.seed,
        allow_overlap=settings.allow_overlap,
    )
    scored, unscored = choose_objectives(policy.objectives, settings.objectives)
    bootstrap = Bootstrap(settings.bootstrap, settings.seed)
    head = _head(policy, test, bootstrap, progress)
    if hasattr(policy, "fuse"):  # the base model's features were the last thing that needed the adapter apart
        policy.fuse()
    answers = _answer(policy, test, scored, settings, progress)
    swept: list[int] = []
    steps: list[Step] = []
    if policy.has_head and scored and settings.control_prompts > 0:
        swept = subset(test.prompts, settings.control_prompts, settings.seed)
        some = [test.rows[i] for i in swept]
        steps = sweep(
            policy, some, scored, max_new_tokens=settings.max_new_tokens, seed=settings.seed, progress=progress
        )
    metrics = {
        "folder": str(folder),
        "method": policy.method,
        "base": policy.base,
        "has_head": policy.has_head,
        "objectives": [objective.to_dict() for objective in policy.objectives],
        "scored": [objective.name for objective in scored],
        "unscored": unscored,
        "test": test.about,
        **_metrics(policy, test, scored, answers, head, bootstrap, progress),
        "control": obedience(steps, scored, bootstrap) if steps else None,
        "control_accuracy": _accuracy(policy, test, bootstrap, settings, progress),
        "notes": test.notes,
    }
    return Evaluated(metrics, test, scored, answers, steps, swept)


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
        probe = linear_probe(train, matrix(test.train_targets, names), ahead, names)
    return head_quality(names, matrix(test.targets, names), sensed, policy.mean_profile, probe, bootstrap, intervals)


def _answer(
    policy: Any, test: TestSet, scored: Sequence[Objective], settings: Settings, progress: Progress
) -> dict[str, Answers]:
    """Answers of every condition, in the fixed order."""
    wanted = choose_conditions(settings.conditions, has_head=policy.has_head)
    names = [objective.name for objective in scored]
    targets = matrix(test.targets, names)
    done: dict[str, Answers] = {}
    sensed: list[Any] = []
    # sensed goes first: the others are given the very profiles it used (snapped as its renderer does)
    for condition in sorted(wanted, key=lambda name: name != "sensed"):
        if not sensed and condition in ("oracle", "shuffled"):
            sensed = policy.sense(test.prompts)
        given = profiles_of(condition, test.targets, sensed, settings.seed)
        start = time.perf_counter()
        answers = generate(
            policy, test.prompts, given, max_new_tokens=settings.max_new_tokens, seed=settings.seed, progress=progress
        )
        seconds = time.perf_counter() - start
        if condition == "sensed":
            sensed = [answer.profile or {} for answer in answers]
        done[condition] = distances_of(measure(test.rows, answers, scored, progress), targets, seconds)
    return {condition: done[condition] for condition in wanted}


def _metrics(
    policy: Any,
    test: TestSet,
    scored: Sequence[Objective],
    answers: Mapping[str, Answers],
    head: dict[str, Any] | None,
    bootstrap: Bootstrap,
    progress: Progress,
) -> dict[str, Any]:
    """Verdict, ablation, head, wins and front."""
    names = [objective.name for objective in scored]
    targets = matrix(test.targets, names)
    chosen = _chosen_values(policy, test, scored, progress)
    gaps = differences(answers, bootstrap)
    closer = (
        {name: _nearer(answers[name].distance, chosen, targets, bootstrap) for name in answers} if test.wanted else None
    )
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
        "wins": {name: win_rates(each.scored.values, chosen, names, bootstrap) for name, each in answers.items()},
        "closer_than_chosen": closer,
        "front": front_of({name: each.scored.values for name, each in answers.items()}, names, bootstrap),
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
