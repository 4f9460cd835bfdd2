"""`python:MODULE:RUBRIC[#function]`: a `Rubric` of the package verifiers (0.1.10 to 0.3), unchanged.

A rubric scores one rollout, the state of a conversation: its functions take what they name of prompt, completion,
answer, info, task, state, the rubric's own objects and the row's other columns, sync or async, and the score is the
weighted sum that the rubric itself makes (`score_rollout`). `#function` is one function's own value, `#*` stands for
all of them; as functions may leave notes in the state for those after them, the ones before it run too.

The rubric's rule that a function which raises, or returns no number, scores 0 is not followed: what could not be
measured is no zero. The error is raised and names function and row; where a function returns None, the answer has no
score.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.rewards.awaiting import finish
from paretune.rewards.base import check_scores

_AT_ONCE = 64
"""Rollouts in flight: functions that ask a service would wait for each other otherwise."""

_PLACE: ContextVar[int] = ContextVar("place")
"""Which answer of the batch the running function scores."""


def is_rubric(found: Any) -> bool:
    """Is this an object of verifiers' Rubric shape?"""
    return not inspect.isclass(found) and hasattr(found, "score_rollout") and hasattr(found, "funcs")


class RubricReward:
    """The weighted sum of a rubric's functions, or one function's own value."""

    can_score_new = True

    def __init__(self, rubric: Any, what: str, function: str = "") -> None:
        self.what = what
        self.failures: dict[int, tuple[str, Exception]] = {}
        self.abstained: set[int] = set()
        _check_form(rubric, what)
        self.rubric = self._watched(_only(rubric, function, what) if function else rubric)

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The rubric's score of each answer. Raises `InputError` where a function of it raises or returns no number."""
        rows = columns.get("id")
        states = [
            _state(prompt, text, {name: values[at] for name, values in columns.items()})
            for at, (prompt, text) in enumerate(zip(prompts, completions, strict=True))
        ]
        self.failures.clear()
        self.abstained.clear()
        finish(self._score_all(states))
        if self.failures:
            at = min(self.failures)
            function, error = self.failures[at]
            row = f"on row '{rows[at]}'" if rows else f"at index {at}"
            raise InputError(f"{self.what}: '{function}' raised {type(error).__name__} {row}: {error}") from error
        scores = [None if at in self.abstained else state["reward"] for at, state in enumerate(states)]
        return check_scores(scores, len(states), self.what, rows)

    async def _score_all(self, states: list[dict[str, Any]]) -> None:
        places = asyncio.Semaphore(_AT_ONCE)

        async def one(at: int, state: dict[str, Any]) -> None:
            async with places:
                _PLACE.set(at)
                await self.rubric.score_rollout(state)

        await asyncio.gather(*(one(at, state) for at, state in enumerate(states)))

    def _watched(self, rubric: Any) -> Any:
        """A copy of the rubric whose functions tell what they raise; the rubric itself only logs it."""
        out = copy.copy(rubric)
        if hasattr(out, "rubrics"):
            out.rubrics = [self._watched(member) for member in out.rubrics]
        out.funcs = [self._watch(function) for function in out.funcs]
        return out

    def _watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*args: Any, **kwargs: Any) -> float:
            try:
                value = function(*args, **kwargs)
                value = await value if inspect.isawaitable(value) else value
                if value is None:
                    self.abstained.add(_PLACE.get())
                    return 0.0
                return float(value)
            except Exception as error:
                self.failures.setdefault(_PLACE.get(), (_name(function), error))
                raise

        watched.__name__ = _name(function)
        watched.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # it chooses the arguments
        return watched


def function_names(rubric: Any) -> list[str]:
    """The names of a rubric's functions, in order; of a group, those of its rubrics."""
    return [_name(function) for part in _parts(rubric) for function in part.funcs]


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _parts(rubric: Any) -> list[Any]:
    """A rubric's own rubrics: itself, or of a group its members (which may be groups)."""
    members = getattr(rubric, "rubrics", None)
    return [rubric] if members is None else [part for member in members for part in _parts(member)]


def _check_form(rubric: Any, what: str) -> None:
    taken = list(inspect.signature(rubric.score_rollout).parameters)
    if taken != ["state"]:
        raise InputError(f"{what} is a rubric of an old verifiers, which scores otherwise; 0.1.10 or newer is needed")
    if not function_names(rubric):
        raise InputError(f"{what} is a rubric without functions")
    for part in _parts(rubric):
        for function in part.funcs:
            if hasattr(part, "_is_group_func") and part._is_group_func(function):
                raise InputError(
                    f"{what}: '{_name(function)}' scores answers by comparing them with each other; an objective "
                    "scores each answer by itself"
                )


def _only(rubric: Any, function: str, what: str) -> Any:
    """The rubric cut down to one function and those before it in its part, of weight 0."""
    names = function_names(rubric)
    if function == "*":
        raise InputError(f"'#*' stands for every function of {what}; write *=python:MODULE:RUBRIC#*")
    if names.count(function) != 1:
        hint = "It has several of that name." if function in names else did_you_mean(function, names).strip()
        raise InputError(f"{what} has no function '{function}' of its own. {hint}")
    part = next(part for part in _parts(rubric) if function in map(_name, part.funcs))
    place = [_name(each) for each in part.funcs].index(function)
    cut = copy.copy(part)
    cut.funcs, cut.weights = part.funcs[: place + 1], [0.0] * place + [1.0]
    return cut


def _state(prompt: Messages, text: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A finished rollout of one turn, as verifiers keeps it; answer, info and task are the row's columns."""
    messages = [dict(message) for message in prompt]
    info = row.get("info") or {}
    state: dict[str, Any] = {
        "input": {"prompt": messages, **row},
        "prompt": messages,
        "completion": [{"role": "assistant", "content": text}],
        "answer": row.get("answer", ""),
        "info": json.loads(info) if isinstance(info, str) else info,  # a data set may hold it as JSON text
        "task": row.get("task") or "default",
        "trajectory": [],
        "metrics": {},
        "reward": 0.0,
        "is_completed": True,
        "timing": {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0},
    }
    return state
