"""What alignment cost: a policy's and its base model's results on the same documents, measure by measure.

The difference is paired: both models answered the same requests, and documents are what is resampled. A measure that is
a mean over documents is resampled as one; any other (perplexity, F1, ...) by the task's own aggregation.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Estimate, Floats, undefined

SLOW = ("bleu", "chrf", "chrf++", "ter")
"""Corpus measures of translation: a thousand times over takes hours."""


@dataclass(frozen=True)
class Measure:
    """One measure of one task or group: the two values with lm-eval's standard errors, and policy - base.

    `outcome`: lost, gained, none shown (the interval holds zero), or not compared.
    """

    task: str
    metric: str
    filter: str
    n: int
    higher_is_better: bool | None
    policy: tuple[float | None, float | None] | None
    base: tuple[float | None, float | None] | None
    difference: Estimate
    group: bool = False

    @property
    def outcome(self) -> str:
        """In a word."""
        if self.difference.low is None or self.higher_is_better is None:
            return "not compared"
        up, down = self.difference.above_zero, self.difference.below_zero
        lost, gained = (down, up) if self.higher_is_better else (up, down)
        return "lost" if lost else "gained" if gained else "none shown"

    @property
    def text(self) -> str:
        """One plain sentence."""
        what = f"{self.metric} of {self.task}" + (f" ({self.filter})" if self.filter != "none" else "")
        found = self.difference
        if self.outcome == "not compared":
            return f"{what}: not compared" + (f", {found.why}" if found.why else "")
        assert found.value is not None and found.low is not None and found.high is not None
        size, low, high = found.value, found.low, found.high
        # a loss is told as a positive amount
        if self.outcome in ("lost", "gained") and size < 0:
            size, low, high = -size, -high, -low
        said = f"{size:.3f} [{low:.3f}, {high:.3f}]"
        if self.outcome == "none shown":
            return f"{what}: no loss is shown (policy minus base {said})"
        return f"{what}: {self.outcome} {said}"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        sides = {"policy": self.policy, "base": self.base}
        values = {key: {"value": each[0], "stderr": each[1]} for key, each in sides.items() if each is not None}
        compared = {} if len(values) < 2 else {"difference": self.difference.to_dict(), "outcome": self.outcome}
        return {
            "task": self.task,
            "group": self.group,
            "metric": self.metric,
            "filter": self.filter,
            "n": self.n,
            "higher_is_better": self.higher_is_better,
            **values,
            **compared,
            **({"text": self.text} if compared else {}),
        }


def measures(
    policy: Mapping[str, Any] | None, base: Mapping[str, Any] | None, loaded: Mapping[str, Any], bootstrap: Bootstrap
) -> list[Measure]:
    """Every measure of every task and group; `policy` and `base` are lm-eval's results (either may be missing)."""
    known = policy if policy is not None else base
    assert known is not None
    groups = dict(known.get("groups") or {})
    leaves = {name: [task.task_name for task in group.get_all_tasks()] for name, group in loaded["groups"].items()}
    out = []
    for name, values in {**groups, **{k: v for k, v in known["results"].items() if k in loaded["tasks"]}}.items():
        tasks = leaves[name] if name in groups else [name]
        for key in values:
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr") or number(values[key]) is None:
                continue
            aggregate = None if name in groups else loaded["tasks"][name].aggregation().get(metric)
            sides = [None if each is None else _side(each, name, metric, filtered) for each in (policy, base)]
            found, n = _difference((policy, base), sides, tasks, metric, filtered, aggregate, bootstrap)
            better = known["higher_is_better"].get(name, {}).get(metric)
            out.append(Measure(name, metric, filtered, n, better, sides[0], sides[1], found, name in groups))
    return out


def _side(results: Mapping[str, Any], name: str, metric: str, filtered: str) -> tuple[float | None, float | None]:
    values = results["results"].get(name) or results["groups"][name]
    return number(values.get(f"{metric},{filtered}")), number(values.get(f"{metric}_stderr,{filtered}"))


def number(value: Any) -> float | None:
    """A finite number as a float; `None` for what is none (lm-eval writes "N/A")."""
    if isinstance(value, numbers.Real) and math.isfinite(float(value)):
        return float(value)
    return None


def _difference(
    results: Sequence[Mapping[str, Any] | None],
    sides: Sequence[tuple[float | None, float | None] | None],
    tasks: Sequence[str],
    metric: str,
    filtered: str,
    aggregate: Any,
    bootstrap: Bootstrap,
) -> tuple[Estimate, int]:
    """(policy - base with its interval, number of documents)."""
    items = [None if each is None else _items(each, tasks, metric, filtered) for each in results]
    first, second = items
    if first is None or second is None:
        return undefined("only one model was measured"), len(first or second or {})
    if list(first) != list(second):
        return undefined("the task gave the two models different requests"), len(first)
    one, two = list(first.values()), list(second.values())
    totals = [side[0] if side is not None else None for side in sides]
    if _is_mean(one, totals[0]) and _is_mean(two, totals[1]):
        return bootstrap.mean(np.asarray(one, dtype=np.float64) - np.asarray(two, dtype=np.float64)), len(one)
    if aggregate is None:
        return undefined("the group's value is no mean over its documents", len(one)), len(one)
    if metric in SLOW:
        return undefined(f"resampling {metric} takes too long", len(one)), len(one)

    def statistic(weights: Floats) -> Floats:
        counts = weights.astype(int)
        return np.array([_again(aggregate, one, row) - _again(aggregate, two, row) for row in counts])

    return bootstrap.estimate(statistic, len(one)), len(one)


def _items(results: Mapping[str, Any], tasks: Sequence[str], metric: str, filtered: str) -> dict[Any, Any]:
    """The measure's value of each document, by what names the request: task, document, the prompt's hash."""
    return {
        (task, sample["doc_id"], sample["prompt_hash"]): sample[metric]
        for task in tasks
        for sample in results["samples"][task]
        if sample["filter"] == filtered and metric in sample
    }


def _is_mean(values: Sequence[Any], total: float | None) -> bool:
    """Is the measure the mean over documents?"""
    if total is None or not values or not all(isinstance(each, numbers.Real) for each in values):
        return False
    return math.isclose(math.fsum(map(float, values)) / len(values), total, rel_tol=1e-9, abs_tol=1e-12)


def _again(aggregate: Any, items: Sequence[Any], counts: Any) -> float:
    """The task's aggregation of a resample; NaN where it has none."""
    drawn = [item for item, count in zip(items, counts, strict=True) for _ in range(count)]
    try:
        return float(aggregate(drawn))
    except (ArithmeticError, ValueError):
        return math.nan


def headline(found: Sequence[Measure]) -> str:
    """What alignment cost, in one sentence over all measures of tasks (groups repeat them)."""
    asked = [each for each in found if not each.group]
    compared = [each for each in asked if each.outcome != "not compared"]
    if not compared:
        return "Nothing could be compared."
    lost, gained = ([each for each in compared if each.outcome == word] for word in ("lost", "gained"))
    of = f"{len(compared)} {'measure' if len(compared) == 1 else 'measures'}"
    if not lost:
        more = f"; {len(gained)} gained" if gained else ""
        return (f"No loss is shown on {of}" if len(compared) > 1 else "No loss is shown") + more + "."
    if len(compared) == 1:
        return f"Lost: {lost[0].text}."
    return f"Lost on {len(lost)} of {of}: " + "; ".join(each.text for each in lost) + "."
