"""Calling rewards: answers in batches, what comes back checked, and the row named where a reward fails.

Every way of scoring (in memory, in a stream, in worker processes, on a Ray cluster) measures through `Scorer`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paretune.data.rows import Completion, Messages, Row
from paretune.errors import InputError
from paretune.profile import Objective
from paretune.rewards.base import TERMINATED, CountingReward, DetailedReward, Reward, check_scores
from paretune.rewards.spec import build_reward, kind_of, runs_parallel, spec_of

Columns = dict[str, list[Any]]
Details = list[dict[str, Any]]
BATCH = 256
"""Completions a call of a reward; models cut them into batches of their own."""


@dataclass(frozen=True)
class Answers:
    """Completions one after another: prompt, text, row id and the value of every column of each."""

    prompts: list[Messages]
    texts: list[str]
    columns: Columns = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)

    def part(self, start: int, stop: int) -> Answers:
        """The completions from `start` to before `stop`."""
        at = slice(start, stop)
        columns = {name: values[at] for name, values in self.columns.items()}
        return Answers(self.prompts[at], self.texts[at], columns, self.ids[at])


@dataclass
class Measured:
    """What a reward said of some answers: scores, details (None if it has none to tell) and counts."""

    scores: list[float | None] = field(default_factory=list)
    details: Details | None = None
    counts: dict[str, float] = field(default_factory=dict)


def column_names(row: Row) -> Iterable[str]:
    """The names of what a row says besides prompt and text."""
    yield "id"
    yield from row.extra
    for completion in row.completions:
        yield from completion.extra
        yield from completion.scores


def answers_of(rows: Sequence[Row], names: Iterable[str] | None = None) -> Answers:
    """The rows' completions with the columns `names` (all there are, if None); a row that says nothing gives None.

    Of one name the completion's score wins over its own column, and that over the row's.
    """
    if names is None:
        names = dict.fromkeys(name for row in rows for name in column_names(row))
    said = [
        {"id": row.id, **row.extra, **completion.extra, **completion.scores}
        for row in rows
        for completion in row.completions
    ]
    return Answers(
        [row.prompt for row in rows for _ in row.completions],
        [completion.text for row in rows for completion in row.completions],
        {name: [values.get(name) for values in said] for name in names},
        [row.id for row in rows for _ in row.completions],
    )


def with_measured(rows: Sequence[Row], found: dict[str, Measured]) -> list[Row]:
    """The rows with the scores of `found` (by objective, a value a completion) and its details; others stay."""
    out: list[Row] = []
    at = 0
    for row in rows:
        completions: list[Completion] = []
        for completion in row.completions:
            scores = completion.scores | {name: item.scores[at] for name, item in found.items()}
            details = {name: item.details[at] for name, item in found.items() if item.details}
            extra = _with_details(completion.extra, details, found)
            completions.append(Completion(completion.text, scores, completion.label, extra))
            at += 1
        out.append(replace(row, completions=tuple(completions)))
    return out


def _with_details(extra: dict[str, Any], details: dict[str, dict[str, Any]], measured: Iterable[str]) -> dict[str, Any]:
    """`extra` with the new details; those that a measured objective had before go, those of other objectives stay."""
    before = extra.get("details")
    if before is None and not details:
        return extra
    if not isinstance(before, dict):  # a column of the user's happens to have this name
        return extra | {"details": ({} if before is None else {"details": before}) | details} if details else extra
    kept = {name: item for name, item in before.items() if name not in measured} | details
    rest = {name: item for name, item in extra.items() if name != "details"}
    return rest | {"details": kept} if kept else rest


class Scorer:
    """The rewards of some objectives, built once. They are called in turn for each batch: a shared model runs once."""

    def __init__(
        self, objectives: Sequence[Objective], *, batch_size: int = BATCH, allow_remote_code: bool = False
    ) -> None:
        if batch_size < 1:
            raise InputError(f"the batch size must be at least 1, found {batch_size}")
        self.batch_size = batch_size
        self.rewards = [
            (objective, build_reward(objective, allow_remote_code=allow_remote_code)) for objective in objectives
        ]

    def __call__(
        self, answers: Answers, *, only: Iterable[str] | None = None, done: Callable[[int], None] = lambda n: None
    ) -> dict[str, Measured]:
        """What each objective (of those named in `only`) says of all answers; `done` is told of each batch's size."""
        wanted = None if only is None else set(only)
        rewards = [item for item in self.rewards if wanted is None or item[0].name in wanted]
        found = {objective.name: Measured() for objective, _ in rewards}
        for start in range(0, len(answers.texts), self.batch_size):
            batch = answers.part(start, start + self.batch_size)
            for objective, reward in rewards:
                scores, details = _measure(reward, objective, batch)
                item = found[objective.name]
                item.scores += scores
                if details is not None:
                    item.details = (item.details or []) + details
            done(len(batch.texts))
        for objective, reward in rewards:
            if isinstance(reward, CountingReward):
                found[objective.name].counts = reward.take_counts()
        return found


def _measure(reward: Reward, objective: Objective, batch: Answers) -> tuple[list[float | None], Details | None]:
    """One call of a reward, checked. Raises `InputError` that names the objective and, if it can be told, the row."""
    what = f"objective '{objective.name}'"
    try:
        scores, details = _call(reward, batch)
    except Exception as error:
        raise _failure(reward, objective, batch, error) from error
    try:
        checked = check_scores(scores, len(batch.texts), f"reward '{objective.spec or objective.name}'", batch.ids)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    if details is not None and len(details) != len(checked):
        raise InputError(f"{what}: its reward gave {len(details)} details for {len(checked)} completions")
    return checked, details


def _call(reward: Reward, batch: Answers) -> tuple[Any, Details | None]:
    """What the reward returns. What it prints goes to stderr: stdout is for results."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            if isinstance(reward, DetailedReward):
                return reward.detailed(batch.prompts, batch.texts, batch.columns)
            return reward(batch.prompts, batch.texts, batch.columns), None
    except SystemExit as error:
        if error.code == TERMINATED:
            raise
        raise InputError(f"the reward ended the program (exit status {error.code}) where scores were wanted") from error


def _failure(reward: Reward, objective: Objective, batch: Answers, error: Exception) -> InputError:
    """The error of a call, with the row at which it comes.

    The first failing answer is found by halving, and the reward called on it alone: that error is told. A reward that
    keeps a rate limit is not called again, nor one out of memory, which smaller batches would only hide.
    """
    what = f"objective '{objective.name}'"
    count = len(batch.texts)
    if not runs_parallel(objective) or isinstance(error, MemoryError) or "out of memory" in str(error):
        return InputError(f"{what}: {told(error)}{_where(batch)}")
    low, high = 0, count  # the first failing answer lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        with contextlib.suppress(Exception):
            _call(reward, batch.part(low, middle))
            low = middle
            continue
        high = middle
    try:
        _call(reward, batch.part(low, high))
    except Exception as single:
        row = f", row '{batch.ids[low]}'" if batch.ids else ""
        return InputError(f"{what}{row}: {told(single)}")
    return InputError(f"{what}: {told(error)}{_where(batch)}")


def _where(batch: Answers) -> str:
    return f" (between rows '{batch.ids[0]}' and '{batch.ids[-1]}')" if batch.ids else ""


def told(error: Exception) -> str:
    """An error of a reward in words."""
    return str(error) if isinstance(error, InputError) else f"the reward raised {type(error).__name__}: {error}"


def in_passes(objectives: Sequence[Objective]) -> list[list[Objective]]:
    """Objectives grouped by the model they share (`RewardKind.shares`), each group in order of its first member."""
    groups: dict[tuple[bool, str], list[Objective]] = {}
    for objective in objectives:
        kind, rest = kind_of(objective)
        shared = kind.shares(rest)
        key = spec_of(objective) if shared is None else f"{kind.prefix}:{shared}" if shared else ""
        groups.setdefault((kind.runs_parallel(rest), key), []).append(objective)
    return list(groups.values())


def holds_model(objective: Objective) -> bool:
    """Whether there may be a model behind the objective, which takes memory."""
    kind, rest = kind_of(objective)
    return kind.shares(rest) != ""


def check_reward(objective: Objective) -> None:
    """`InputError` for a bad spec and, unless a model would have to be loaded for it, a reward that cannot be built."""
    kind, rest = kind_of(objective)
    kind.check(rest)
    if not holds_model(objective) or not runs_parallel(objective):  # what must live in one process is a service
        build_reward(objective)


def pass_name(objectives: Sequence[Objective]) -> str:
    """What a progress bar calls a group."""
    names = [objective.name for objective in objectives]
    return "score " + (", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more")


@dataclass(frozen=True)
class Recipe:
    """How to build a `Scorer`, wherever that is done; plain data."""

    objectives: list[Objective]
    batch_size: int = BATCH
    allow_remote_code: bool = False

    def build(self) -> Scorer:
        """Load the rewards."""
        return Scorer(self.objectives, batch_size=self.batch_size, allow_remote_code=self.allow_remote_code)


@dataclass(frozen=True)
class Task:
    """The answers of one chunk, and the objectives that have not been measured on it."""

    number: int
    key: str
    only: list[str]
    answers: Answers


@dataclass(frozen=True)
class Outcome:
    """What came of a task."""

    number: int
    key: str
    found: dict[str, Measured]


def run_here(recipe: Recipe, tasks: Iterable[Task], done: Callable[[int], None]) -> Generator[Outcome, None, None]:
    """Score in this process; the rewards are built when the first task comes."""
    scorer: Scorer | None = None
    for task in tasks:
        scorer = scorer or recipe.build()
        yield Outcome(task.number, task.key, scorer(task.answers, only=task.only, done=done))
