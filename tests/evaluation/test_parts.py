"""Derangement, win rates, the ridge probe, subsets and charts: each against values worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paretune.bootstrap import Bootstrap
from paretune.errors import InputError
from paretune.evaluation import charts
from paretune.evaluation.conditions import choose_conditions, derangement, filled
from paretune.evaluation.control import subset
from paretune.evaluation.fronts import front_of
from paretune.evaluation.head import ALPHAS, fit_ridge, interval_ends, interval_quality, linear_probe
from paretune.evaluation.scoring import choose_objectives, distances
from paretune.evaluation.winrate import joint_outcomes, outcomes, win_rates
from paretune.profile import Objective


@pytest.mark.parametrize("n", [2, 3, 17])
def test_a_derangement_leaves_nothing_in_its_place(n: int) -> None:
    for seed in range(20):
        order = derangement(n, seed)
        assert sorted(order) == list(range(n))
        assert all(order[i] != i for i in range(n))
    assert derangement(17, 0) == derangement(17, 0) != derangement(17, 1)


def test_one_prompt_cannot_be_shuffled() -> None:
    with pytest.raises(InputError, match="two or more"):
        derangement(1, 0)


def test_conditions_in_order() -> None:
    assert choose_conditions(["none", "oracle"], has_head=True) == ["oracle", "none"]
    assert choose_conditions(["sensed"], has_head=False) == ["none"]


def test_open_targets_are_filled_by_what_is_sensed() -> None:
    assert filled([{"a": 1.0}], [{"a": 0.2, "b": 0.3}]) == [{"a": 1.0, "b": 0.3}]


def test_outcomes_and_the_margin() -> None:
    answers = np.array([0.6, 0.51, 0.511, 0.49, 0.4, np.nan])
    assert outcomes(answers, np.full(6, 0.5)).tolist()[:5] == [1, 0, 1, 0, -1]
    assert np.isnan(outcomes(answers, np.full(6, 0.5))[5])


def test_joint_outcomes_by_hand() -> None:
    results = np.array([[1, 0], [0, 0], [1, -1], [-1, -1], [1, np.nan]])
    assert joint_outcomes(results)[:4].tolist() == [1, 0, -1, -1]
    assert np.isnan(joint_outcomes(results)[4])


def test_shares_add_up() -> None:
    draw = np.random.default_rng(0)
    rates = win_rates(draw.random((30, 2)), draw.random((30, 2)), ["a", "b"], Bootstrap(50))
    for shares in (*rates["objectives"].values(), rates["joint"]):
        assert sum(shares[key]["value"] for key in ("win", "tie", "loss")) == pytest.approx(1)


def test_the_ridge_is_the_best_left_out_one() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(15, 4))
    y = np.clip(0.5 + 0.1 * x[:, 0] + 0.1 * draw.normal(size=15), 0, 1)
    ridge = fit_ridge(x, y)
    scaled = (x - x.mean(0)) / x.std(0)
    errors = []
    for alpha in ALPHAS:
        residuals = []
        for i in range(15):
            keep = np.arange(15) != i
            own, mean = scaled[keep] - scaled[keep].mean(0), y[keep].mean()
            beta = np.linalg.solve(own.T @ own + alpha * np.eye(4), own.T @ (y[keep] - mean))
            residuals.append(y[i] - mean - (scaled[i] - scaled[keep].mean(0)) @ beta)
        errors.append(np.mean(np.square(residuals)))
    assert ridge.alpha == ALPHAS[int(np.argmin(errors))]


def test_the_probe_needs_some_known_targets() -> None:
    features = np.random.default_rng(0).normal(size=(8, 3))
    targets = np.column_stack([features[:, 0] * 0.1 + 0.5, np.full(8, np.nan)])
    probe = linear_probe(features, targets, features, ["a", "b"])
    assert probe.alphas["b"] is None and np.isnan(probe.predictions[:, 1]).all()
    assert np.abs(probe.predictions[:, 0] - targets[:, 0]).max() < 0.02


def test_coverage_and_width_by_hand() -> None:
    truth = np.array([0.5, 0.0, 1.0, np.nan])
    low, high = np.array([0.4, 0.1, 0.9, 0.0]), np.array([0.6, 0.2, 1.0 - 1e-8, 1.0])
    found = interval_quality(truth, low, high, Bootstrap(50))
    assert found["coverage"]["value"] == pytest.approx(2 / 3) and found["coverage"]["n"] == 3
    assert found["width"]["value"] == pytest.approx((0.2 + 0.1 + 0.1) / 3)


def test_ends_of_intervals_need_every_prompt() -> None:
    some = {"a": (0.1, 0.2), "b": (0.3, 0.4)}
    ends = interval_ends([some, some], ["b", "a"])
    assert ends is not None and ends[0].tolist() == [[0.3, 0.1]] * 2 and ends[1].tolist() == [[0.4, 0.2]] * 2
    assert interval_ends([some, None], ["a"]) is None and interval_ends([], ["a"]) is None


def test_distance_is_over_what_is_known() -> None:
    values = np.array([[0.5, 0.5], [0.5, np.nan], [np.nan, np.nan]])
    targets = np.array([[0.7, 0.1], [0.6, 0.0], [0.5, 0.5]])
    assert distances(values, targets)[:2].tolist() == pytest.approx([0.3, 0.1])
    assert np.isnan(distances(values, targets)[2])
    assert np.isnan(distances(np.zeros((2, 0)), np.zeros((2, 0)))).all()


def test_a_subset_does_not_depend_on_order() -> None:
    prompts = [[{"role": "user", "content": f"p{i}"}] for i in range(20)]
    first = {prompts[i][0]["content"] for i in subset(prompts, 5, 0)}
    turned = prompts[::-1]
    assert {turned[i][0]["content"] for i in subset(turned, 5, 0)} == first
    assert subset(prompts, 99, 0) == list(range(20))


def test_the_front_of_conditions_by_hand() -> None:
    values = {"x": np.array([[0.5, 0.2], [0.5, 0.4]]), "y": np.array([[0.2, 0.5], [0.4, 0.5]]), "z": np.zeros((2, 2))}
    front = front_of(values, ["a", "b"], Bootstrap(50))
    assert front is not None
    # 0.5 x 0.3 and 0.3 x 0.5, sharing 0.3 x 0.3
    assert front["hypervolume"]["value"] == pytest.approx(0.21)
    assert [point["on_front"] for point in front["points"]] == [True, True, False]
    assert front["reference"] == {"a": 0, "b": 0}


def test_chart_text_is_escaped() -> None:
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 3}
    svg = charts.interval_chart([charts.Mark('<img onerror="x">', estimate)], "<b>")
    assert "<img" not in svg and "<b>" not in svg and "&lt;img" in svg


def test_numbers_for_people() -> None:
    assert charts.number(None) == "–"
    assert charts.number(-0.0001) == "0.000"
    assert charts.number(-0.25, 2) == "−0.25"
    assert charts.interval({"value": 0.5, "low": None, "high": None}) == "0.500"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.003, 0.02), (12, 900)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    found = charts.ticks(low, high)
    assert 3 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_spearman_within_prompts_looks_at_each_prompt_alone() -> None:
    from paretune.evaluation.control import _within

    nan = float("nan")
    obtained = np.array([[0.7, 0.8, 0.9], [0.1, 0.2, 0.15], [0.5, 0.5, 0.5], [0.3, nan, 0.4]])
    # ranks 1 2 3 against 1 3 2: 1 - 6 * 2 / (3 * 8) = 0.5; no change is no control; two values say nothing
    assert _within(np.array([0.1, 0.5, 0.9]), obtained) == pytest.approx([1, 0.5, 0, nan], nan_ok=True)


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ("short=lexical:brevty", "unknown lexical objective 'brevty'.*'brevity'"),
        ("short=python:no_such_rewards_module:f", "there is no Python module 'no_such_rewards_module'"),
        ("short=lexical:words:no_such_list.txt", "no such word list"),
        ("short=ensemble:mean(lexical:length, python:no_such_rewards_module:f)", "no Python module"),
        ("short=judge:m@http://localhost:1/v1", "a judge needs a rubric"),
        ("shrot", "no objective 'shrot'"),
        ("-short=lexical:brevity", "more of 'short' as better"),
    ],
)
def test_a_reward_that_cannot_score_is_told_before_anything_is_generated(asked: str, cause: str) -> None:
    policy = [Objective("short", "lexical:brevity"), Objective("long", "lexical:length", "minimise")]
    with pytest.raises(InputError, match=cause):
        choose_objectives(policy, [asked])
    scored, unscored = choose_objectives(policy, ["-long=lexical:question"])
    assert [(each.name, each.spec, each.direction) for each in scored] == [("long", "lexical:question", "minimise")]
    assert list(unscored) == ["short"]
