"""Objective specs: what parses, what does not, and what the errors offer."""

from __future__ import annotations

import pytest

from paretune.errors import InputError
from paretune.profile import Objective
from paretune.rewards import RewardKind, build_reward, can_score_new, list_rewards, parse_objective, register_reward


def test_a_spec_becomes_an_unfitted_objective_with_phrases() -> None:
    objective = parse_objective("short=lexical:brevity")
    assert (objective.name, objective.spec, objective.direction) == ("short", "lexical:brevity", "maximise")
    assert objective.scale is None
    assert (
        objective.phrases[0] == "Answer in a full paragraph."
        and objective.phrases[4] == "Answer in five words or fewer."
    )


def test_minimising_turns_the_phrases_round() -> None:
    objective = parse_objective("-length=lexical:length")
    assert (objective.name, objective.direction) == ("length", "minimise")
    assert objective.phrases == parse_objective("x=lexical:brevity").phrases


def test_the_value_may_hold_equals_signs() -> None:
    assert parse_objective("x=lexical:words:a=b.txt").spec == "lexical:words:a=b.txt"


def test_relevance_has_phrases_with_any_encoder() -> None:
    assert len(parse_objective("r=embed:relevance@some/model").phrases) == 5
    assert parse_objective("r=hf:some/model#label").phrases == ()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("lexical:brevity", "written NAME=SPEC"),
        ("brevity=", "written NAME=SPEC"),
        ("=lexical:brevity", "must be a letter"),
        ("two words=lexical:brevity", "must be a letter"),
        ("x=lexcal:brevity", "unknown reward 'lexcal'.*Did you mean 'lexical'"),
        ("x=brevity", "did you mean 'lexical:brevity'"),
        ("x=lexical:brevty", "Did you mean 'brevity'"),
        ("x=lexical:", "unknown lexical objective ''"),
        ("x=lexical:words", "word list file"),
        ("x=lexical:words:", "word list file"),
        ("x=embed:relevence", "Did you mean 'relevance'"),
        ("x=embed:relevance@", "after the @"),
        ("x=column:", "column:NAME"),
        ("x=python:module", "python:MODULE:FUNCTION"),
        ("x=hf:", "hf:MODEL"),
        ("x=hf:m?input=pear", "Did you mean 'pair'"),
    ],
)
def test_bad_specs(text: str, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        parse_objective(text)


def test_every_listed_prefix_is_known() -> None:
    listed = list_rewards()
    assert {spec.split(":")[0] for spec, _ in listed} == {
        *("lexical", "embed", "column", "python", "hf", "judge", "ensemble", "gate", "trained"),
    }
    assert all(text and "\n" not in text for _, text in listed)


def test_what_can_score_new_answers() -> None:
    assert can_score_new(parse_objective("x=lexical:brevity"))
    assert can_score_new(parse_objective("x=hf:not/there"))  # nothing is loaded to know it
    assert not can_score_new(parse_objective("x=column:judge"))
    assert not can_score_new(Objective("judge"))  # without a spec it came with the data


def test_an_objective_without_spec_reads_its_column() -> None:
    reward = build_reward(Objective("judge"))
    assert reward([[{"role": "user", "content": "p"}]], ["a"], {"judge": [0.5]}) == [0.5]


def test_a_prefix_is_registered_once() -> None:
    kind = RewardKind("lexical", (), build=lambda rest, remote: build_reward(Objective("x")), check=lambda rest: None)
    with pytest.raises(ValueError, match="registered already"):
        register_reward(kind)
