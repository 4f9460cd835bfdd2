"""Held-out figures against counts made by hand, on a model whose rewards are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paretune.bootstrap import Bootstrap
from paretune.data.rows import Completion, Row
from paretune.policy.packed import Branch
from paretune.profile import Objective
from paretune.reward_model.card import figures
from paretune.reward_model.examples import RewardExample
from paretune.reward_model.supervision import Comparison, Rating
from paretune.reward_model.validate import calibration, mean_over_pairs, validate


class Known:
    """A reward model that knows its rewards by text; its only unit is the one it is made with."""

    def __init__(self, rewards, unit="logit", direction="maximise"):
        self.rewards, self.units, self.names = rewards, [unit], ["good"]
        self.objectives = [Objective("good", direction=direction)]
        self.module = self.head = self

    def raw(self, prompts, texts, progress=None):
        return torch.tensor([[self.rewards[text]] for text in texts])

    def values(self, raw):
        return raw

    def ratings(self, raw):
        return raw


def example(prompt, texts, pairs=(), ratings=()):
    row = Row([{"role": "user", "content": prompt}], tuple(Completion(text) for text in texts), id=prompt)
    branches = {k: Branch([], [k]) for k in range(len(texts))}
    return RewardExample(
        row, [1], branches, [Comparison(*each, 0) for each in pairs], [Rating(k, 0, v) for k, v in ratings]
    )


REWARDS = {"a": 3.0, "b b": 1.0, "c c c": 2.0, "d": 1.0, "e e": 1.0, "f": 0.0, "g g": 4.0}
PAIRS = [
    example("one", ["a", "b b", "c c c"], [(0, 1), (0, 2), (1, 2)]),  # right, right, wrong; shorter is preferred always
    example("two", ["d", "e e"], [(0, 1)]),  # a tie counts half; the shorter is preferred
    example("three", ["f", "g g"], [(1, 0)]),  # right, the longer
]


def test_accuracy_and_the_length_rules_are_counted():
    found = validate(Known(REWARDS), PAIRS, Bootstrap(200))["good"]
    assert (found["pairs"], found["pair_prompts"]) == (5, 3)
    assert found["accuracy"]["value"] == pytest.approx(3.5 / 5) and found["accuracy"]["n"] == 3
    assert found["accuracy"]["low"] < 0.7 < found["accuracy"]["high"]
    assert found["accuracy_of_longer_wins"]["value"] == pytest.approx(1 / 5)
    assert found["accuracy_of_shorter_wins"]["value"] == pytest.approx(4 / 5)
    assert found["accuracy_over_length_rule"]["value"] == pytest.approx(3.5 / 5 - 4 / 5)
    assert found["accuracy_where_shorter_preferred"]["value"] == pytest.approx(2.5 / 4)
    assert found["accuracy_where_longer_preferred"]["value"] == 1.0
    margins = [2.0, 1.0, -1.0, 0.0, 4.0]
    assert found["margin"]["mean"] == pytest.approx(np.mean(margins)) and found["margin"]["0.5"] == 1.0
    # rewards rise with length in `three`, are equal in `two`, and in `one` the ranks (3, 1, 2) meet (1, 2, 3)
    assert (
        found["length_correlation"]["value"] == pytest.approx((1.0 - 0.5) / 2) and found["length_correlation"]["n"] == 2
    )


def test_a_minimised_objective_wants_the_lower_reward():
    turned = {text: -value for text, value in REWARDS.items()}
    one, other = (
        validate(Known(REWARDS), PAIRS, Bootstrap(50)),
        validate(Known(turned, direction="minimise"), PAIRS, Bootstrap(50)),
    )
    for key in ("accuracy", "accuracy_where_shorter_preferred", "margin"):
        assert one["good"][key] == other["good"][key]


def test_rows_of_one_prompt_are_one_prompt():
    rows = [example("One", ["a", "b b"], [(0, 1)]), example("one ", ["c c c", "d"], [(0, 1)])]
    found = validate(Known(REWARDS), rows, Bootstrap(50))["good"]
    assert (found["pairs"], found["pair_prompts"], found["accuracy"]["low"]) == (2, 1, None)


def test_the_interval_resamples_prompts_not_pairs():
    prompts = np.repeat(np.arange(30.0), 20)
    right = np.repeat(np.arange(30) % 2, 20).astype(float)
    found = mean_over_pairs(right, prompts, Bootstrap(500))
    alone = Bootstrap(500).mean(right)
    assert found.value == alone.value == 0.5 and found.n == 30
    assert found.high - found.low > 3 * (alone.high - alone.low)


def test_calibration_compares_the_likelier_side_with_what_came_of_it():
    margin = np.array([2.0, 2.0, -2.0, 0.1, -0.1, 5.0])
    found = calibration(margin)
    p = [1 / (1 + math.exp(-m)) for m in (0.1, 2.0, 5.0)]
    assert [(b["from"], b["pairs"], b["accuracy"]) for b in found["bins"]] == [
        (0.5, 2, 0.5), (0.8, 3, pytest.approx(2 / 3)), (0.9, 1, 1.0)
    ]  # fmt: skip
    assert [b["predicted"] for b in found["bins"]] == pytest.approx(p)
    wanted = (2 * abs(p[0] - 0.5) + 3 * abs(p[1] - 2 / 3) + abs(p[2] - 1)) / 6
    assert found["expected_error"] == pytest.approx(wanted)


def test_calibration_is_told_of_logits_only():
    assert "calibration" in validate(Known(REWARDS), PAIRS, Bootstrap(20))["good"]
    assert "calibration" not in validate(Known(REWARDS, "rating"), PAIRS, Bootstrap(20))["good"]


def test_figures_of_ratings():
    rows = [
        example("one", ["a", "b b", "c c c"], ratings=[(0, 4.0), (1, 1.0), (2, 2.0)]),
        example("two", ["d", "g g"], ratings=[(0, 5.0), (1, 2.0)]),
        example("three", ["e e", "f"], ratings=[(0, 3.0), (1, 3.0)]),
    ]
    found = validate(Known(REWARDS, "rating"), rows, Bootstrap(100))["good"]
    truth, guess = np.array([4.0, 1, 2, 5, 2, 3, 3]), np.array([3.0, 1, 2, 1, 4, 1, 0])
    ranks = [[(v < x).sum() + ((v == x).sum() + 1) / 2 for x in v] for v in (truth, guess)]
    assert found["ratings"] == 7
    assert found["spearman"]["value"] == pytest.approx(np.corrcoef(ranks)[0, 1]) and found["spearman"]["n"] == 3
    assert found["spearman_within_prompts"]["value"] == pytest.approx(0.0)  # 1, -1, and none for equal ratings
    assert found["spearman_within_prompts"]["n"] == 2
    spread = ((truth - truth.mean()) ** 2).sum()
    assert found["r2"]["value"] == pytest.approx(1 - ((truth - guess) ** 2).sum() / spread)


def test_the_table_has_what_there_is():
    header, lines = figures(validate(Known(REWARDS), PAIRS, Bootstrap(50)))
    told = dict(lines)
    assert header == ["held out", "good"] and told["held-out pairs"] == "5"
    assert told["accuracy"].startswith("0.700 [") and "R2" not in told
    assert told["accuracy where the longer is preferred"] == "1.000"
