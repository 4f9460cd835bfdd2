"""Rubrics of verifiers: a stand-in of the same shape, written by us, and the package itself where it is installed."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, parse_objective
from paretune.rewards.python import KIND
from paretune.rewards.python_rubric import RubricReward

PROMPT = [{"role": "user", "content": "what is 2 + 2"}]
TALK = [{"role": "system", "content": "s"}, *PROMPT]
TEXTS = ["it is 4", "five"]
COLUMNS: dict[str, list[Any]] = {
    "id": ["r1", "r2"],
    "answer": ["4", "4"],
    "info": [{"level": 2.0}, '{"level": 3.0}'],
    "task": ["sums", None],
}


class Rubric:
    """What paretune relies on: functions with weights, one rollout at a time, errors logged and scored 0."""

    def __init__(self, funcs: list[Any], weights: list[float] | None = None) -> None:
        self.funcs, self.weights = funcs, weights or [1.0] * len(funcs)
        self.class_objects = {"parser": "the parser"}

    async def score_rollout(self, state: Any) -> None:
        given = {key: state[key] for key in ("prompt", "completion", "answer", "info", "task")}
        given |= {"state": state, **self.class_objects}
        state["metrics"] = {}
        for function in self.funcs:
            try:
                value = function(**{name: given[name] for name in inspect.signature(function).parameters})
                value = float(await value if inspect.isawaitable(value) else value)
            except Exception:
                value = 0.0
            state["metrics"][function.__name__] = value
        state["reward"] = sum(
            weight * state["metrics"][function.__name__]
            for function, weight in zip(self.funcs, self.weights, strict=True)
        )


class Group(Rubric):
    """Several rubrics, whose rewards add up."""

    def __init__(self, rubrics: list[Rubric]) -> None:
        super().__init__([])
        self.rubrics = rubrics

    async def score_rollout(self, state: Any) -> None:
        total = 0.0
        for rubric in self.rubrics:
            await rubric.score_rollout(state)
            total += state["reward"]
        state["reward"] = total


def correct(completion: Any, answer: str) -> float:
    return float(answer in completion[-1]["content"])


async def level(info: Any, state: Any) -> float:
    await asyncio.sleep(0)
    state["note"] = info["level"]
    return info["level"]


def noted(state: Any) -> float:
    return state["note"] * 10


def make(*funcs: Any, weights: list[float] | None = None, function: str = "", shape: Any = Rubric) -> RubricReward:
    return RubricReward(shape(list(funcs), weights), "the rubric", function)


def run(reward: RubricReward, prompt: Any = PROMPT, **columns: Any) -> list[float | None]:
    return reward([prompt] * 2, TEXTS, COLUMNS | columns)


def test_the_score_is_the_rubrics_weighted_sum() -> None:
    assert run(make(correct, level, weights=[2.0, 0.5])) == [2.0 + 1.0, 0.0 + 1.5]
    assert run(make(correct)) == [1.0, 0.0]


def test_one_function_is_an_objective_of_its_own() -> None:
    assert run(make(correct, level, noted, function="level")) == [2.0, 3.0]
    assert run(make(level, noted, weights=[0.0, 0.1], function="noted")) == [20.0, 30.0]  # what it builds on runs too


def test_functions_get_what_they_name() -> None:
    seen: list[Any] = []

    def look(prompt: Any, completion: Any, answer: Any, info: Any, task: Any, parser: Any, state: Any) -> float:
        seen.append((prompt, completion, answer, info, task, parser, state["input"]["answer"]))
        return 1.0

    assert run(make(look), TALK) == [1.0, 1.0]
    assert seen[0] == (
        TALK, [{"role": "assistant", "content": "it is 4"}], "4", {"level": 2.0}, "sums", "the parser", "4",
    )  # fmt: skip
    assert seen[1][3:5] == ({"level": 3.0}, "default")  # info as JSON text; no task


def test_groups() -> None:
    group = Group([Rubric([correct], [2.0]), Group([Rubric([level, noted], [1.0, 0.0])])])
    assert run(RubricReward(group, "the group")) == [4.0, 3.0]
    assert run(RubricReward(group, "the group", "noted")) == [20.0, 30.0]
    assert group.rubrics[0].funcs == [correct]  # the user's object stays as it was


def test_a_function_that_raises_is_an_error_and_no_zero() -> None:
    def fail(completion: Any) -> float:
        if completion[-1]["content"] == "five":
            raise KeyError("gone")
        return 1.0

    with pytest.raises(InputError, match="the rubric: 'fail' raised KeyError on row 'r2': 'gone'"):
        run(make(correct, fail))
    with pytest.raises(InputError, match="'fail' raised KeyError at index 1"):
        make(fail)([PROMPT] * 2, TEXTS, {})


def test_what_is_no_number() -> None:
    def abstains(completion: Any) -> Any:
        return None if completion[-1]["content"] == "five" else 2.0

    assert run(make(correct, abstains)) == [3.0, None]
    assert run(make(correct, abstains)) == [3.0, None]
    with pytest.raises(InputError, match="'<lambda>' raised ValueError on row 'r1'"):
        run(make(lambda state: "much"))
    with pytest.raises(InputError, match=r"the rubric gave nan at index 0 \(row 'r1'\)"):
        run(make(lambda state: float("nan")))


def test_rubrics_that_cannot_be_used() -> None:
    class Old(Rubric):
        async def score_rollout(self, prompt: Any, completion: Any) -> None:  # type: ignore[override]
            pass

    class Comparing(Rubric):
        def _is_group_func(self, function: Any) -> bool:
            return True

    with pytest.raises(InputError, match="old verifiers"):
        make(correct, shape=Old)
    with pytest.raises(InputError, match="'correct' scores answers by comparing them"):
        make(correct, shape=Comparing)
    with pytest.raises(InputError, match="without functions"):
        make()
    with pytest.raises(InputError, match=r"no function 'corect'.*Did you mean 'correct'"):
        make(correct, function="corect")
    with pytest.raises(InputError, match="several of that name"):
        make(correct, correct, function="correct")
    with pytest.raises(InputError, match="stands for every function"):
        make(correct, function="*")


MODULE = """
import verifiers_shape as shape
def correct(completion, answer):
    return float(answer in completion[-1]["content"])
def brief(completion):
    return -float(len(completion[-1]["content"]))
rubric = shape.Rubric([correct, brief], [1.0, 0.1])
"""


def test_a_spec_names_the_rubric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shape = inspect.getsource(Rubric).replace("class Rubric", "import inspect\nfrom typing import Any\nclass Rubric")
    (tmp_path / "verifiers_shape.py").write_text(shape)
    (tmp_path / "with_rubric.py").write_text(MODULE)
    spec = "with_rubric:rubric"
    reward = build_reward(parse_objective(f"x=python:{spec}"))
    assert reward([PROMPT] * 2, TEXTS, COLUMNS) == [pytest.approx(1 - 0.7), pytest.approx(-0.4)]
    assert KIND.expand is not None
    found = KIND.expand(f"{spec}#*")
    assert found == [("correct", f"{spec}#correct"), ("brief", f"{spec}#brief")]
    assert build_reward(parse_objective(f"x=python:{found[1][1]}"))([PROMPT] * 2, TEXTS, COLUMNS) == [-7.0, -4.0]
    with pytest.raises(InputError, match="'correct' is no rubric"):
        KIND.expand("with_rubric:correct#*")
    with pytest.raises(InputError, match=r"no function 'rubik'.*Did you mean 'rubric'"):
        build_reward(parse_objective("x=python:with_rubric:rubik"))


def test_rubrics_of_the_package_itself() -> None:
    verifiers = pytest.importorskip("verifiers")
    if not hasattr(verifiers, "Rubric"):
        pytest.skip("verifiers 0.4 has no rubrics")

    def by_column(completion: Any, **kwargs: Any) -> float:
        return len(kwargs["parser"].parse_answer(completion)) + kwargs["info"]["level"]

    rubric = verifiers.Rubric(funcs=[correct, level, by_column], weights=[2.0, 0.5, 1.0])
    own = [
        {"answer": "4", "info": {"level": at}, "completion": text} for at, text in zip([2.0, 3.0], TEXTS, strict=True)
    ]
    for state, text in zip(own, TEXTS, strict=True):
        state |= {
            "prompt": PROMPT, "completion": [{"role": "assistant", "content": text}], "task": "sums", "trajectory": [],
            "timing": {"scoring_ms": 0.0, "total_ms": 0.0},
        }  # fmt: skip
        asyncio.run(rubric.score_rollout(state))
    expected = [state["reward"] for state in own]
    assert expected == [2.0 + 1.0 + 9.0, 0.0 + 1.5 + 7.0]
    assert run(RubricReward(rubric, "the rubric")) == expected
    assert run(RubricReward(rubric, "the rubric", "level")) == [2.0, 3.0]
    group = verifiers.RubricGroup([rubric, verifiers.Rubric(funcs=[noted])])
    assert run(RubricReward(group, "the group")) == [expected[0] + 20.0, expected[1] + 30.0]
    with pytest.raises(InputError, match="comparing them"):
        RubricReward(verifiers.Rubric(funcs=[lambda completions: [1.0]]), "the rubric")
    with pytest.raises(InputError, match="'fail' raised ZeroDivisionError on row 'r1'"):

        def fail(completion: Any) -> float:
            return 1 / 0

        run(RubricReward(verifiers.Rubric(funcs=[fail]), "the rubric"))
