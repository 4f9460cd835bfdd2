"""Gates: a score where a condition holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, can_score_new, parse_objective
from paretune.rewards.gate import KIND, parse_gate

PROMPT = [{"role": "user", "content": "p"}]
TEXTS = ["one", "two words", "three words here", "and four words here"]
COLUMNS: dict[str, list[Any]] = {"a": [1.0, 2.0, 3.0, None], "b": [10.0, 20.0, None, 40.0]}


def build(text: str) -> Any:
    return build_reward(parse_objective(f"x=gate:{text}"))


def run(text: str) -> Any:
    return build(text)([PROMPT] * 4, TEXTS, COLUMNS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("column:b if column:a >= 2", [0.0, 20.0, None, None]),
        ("column:b if column:a > 2", [0.0, 0.0, None, None]),
        ("column:b if column:a <= 2", [10.0, 20.0, 0.0, None]),
        ("column:b if column:a < 2", [10.0, 0.0, 0.0, None]),
        ("column:b if column:a == 2", [0.0, 20.0, 0.0, None]),
        ("column:b if column:a > 1 else -1.5", [-1.5, 20.0, None, None]),
        ("lexical:length if column:a>1 else 1e3", [1000.0, 2.0, 3.0, None]),
        ("(gate:column:b if column:a > 1) if lexical:length < 3 else 7", [0.0, 20.0, 7.0, 7.0]),
        ("column:b if (gate:column:a if column:b > 10) >= 0.5", [0.0, 20.0, None, None]),
        ("ensemble:mean(column:a, column:b) if lexical:length > 1", [0.0, 11.0, None, None]),
    ],
)
def test_gates(text: str, expected: list[float | None]) -> None:
    assert run(text) == expected


def test_details_tell_the_condition() -> None:
    scores, details = build("ensemble:mean(column:a, lexical:length) if column:a > 1").detailed(
        [PROMPT] * 4, TEXTS, COLUMNS
    )
    assert scores == [0.0, 2.0, 3.0, None]
    assert details[0] == {"condition": 1.0, "held": False}
    assert details[1]["condition"] == 2.0 and details[1]["held"] is True
    assert details[1]["details"]["score"]["members"] == {"column:a": 2.0, "lexical:length": 2.0}
    assert details[3] == {"condition": None, "held": None}


def test_the_score_is_measured_only_where_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dear_reward.py").write_text(
        "seen = []\ndef f(completions, n):\n    seen.extend(n)\n    return [1.0] * len(completions)\n"
    )
    reward = build("python:dear_reward:f if column:a >= 2")
    assert reward([PROMPT] * 4, TEXTS, COLUMNS | {"n": [0, 1, 2, 3]}) == [0.0, 1.0, 1.0, None]
    import dear_reward

    assert dear_reward.seen == [1, 2]
    assert reward([PROMPT], TEXTS[:1], {"a": [0.0], "n": [0]}) == [0.0]  # nobody passes: it is not called at all
    assert dear_reward.seen == [1, 2]


def test_two_outputs_of_one_model_cost_one_forward(tiny_classifier: Path) -> None:
    reward = build(f"hf:{tiny_classifier}#cheerful if hf:{tiny_classifier}#gloomy < -1")
    sizes: list[int] = []
    reward.score.loaded.network.model.register_forward_hook(lambda *told: sizes.append(1))
    found, details = reward.detailed([PROMPT] * 4, TEXTS, {})
    assert sizes == [1]
    whole = build_reward(parse_objective(f"x=hf:{tiny_classifier}#cheerful"))([PROMPT] * 4, TEXTS, {})
    assert found == [score if told["held"] else 0.0 for score, told in zip(whole, details, strict=True)]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("column:b", "a gate is written"),
        ("", "a gate is written"),
        ("column:b if column:a", "a gate is written"),
        ("column:b if column:a = 2", "a gate is written"),
        ("column:b if column:a > 2 if column:a < 3", "a gate is written"),
        ("column:b if column:a > x", "compares with a number; found 'x'"),
        ("column:b if column:a > nan", "compares with a number; found 'nan'"),
        ("column:b if column:a > 1 else None", "compares with a number; found 'None'"),
        ("column:b if lexical:brevty > 1", "Did you mean 'brevity'"),
        ("lexical:lenght if column:a > 1", "Did you mean 'length'"),
        ("(column:b if column:a > 1", "not balanced"),
    ],
)
def test_bad_gates(text: str, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        parse_objective(f"x=gate:{text}")


def test_options_of_a_model_are_no_comparison() -> None:
    spec = parse_gate("hf:m#a?input=chat&tokens=9 if hf:m#b?input=chat >= -0.5 else 2")
    assert (spec.score, spec.condition) == ("hf:m#a?input=chat&tokens=9", "hf:m#b?input=chat")
    assert (spec.compare, spec.bound, spec.otherwise) == (">=", -0.5, 2.0)


def test_what_it_can_score_is_what_both_can() -> None:
    assert can_score_new(parse_objective("x=gate:lexical:length if lexical:question > 0"))
    assert not can_score_new(parse_objective("x=gate:lexical:length if column:a > 0"))
    assert KIND.shares("hf:m#a if hf:m#b > 0") == KIND.shares("hf:m#c if hf:m#d > 0")
