"""The losses against formulas written out by hand in float64."""

from __future__ import annotations

import math

import pytest
import torch

from paretune.reward_model.config import RewardHeadConfig
from paretune.reward_model.head import RewardHead
from paretune.reward_model.losses import bradley_terry, centring, ordinal, squared


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_bradley_terry_is_minus_log_of_the_winners_probability():
    winner, loser = tensor(1.0, -0.5, 3.0), tensor(0.2, 0.5, 3.0)
    wanted = [-math.log(math.exp(w) / (math.exp(w) + math.exp(k))) for w, k in zip(winner, loser, strict=True)]
    assert bradley_terry(winner, loser).tolist() == pytest.approx(wanted, abs=1e-12)
    assert bradley_terry(winner, loser)[2].item() == pytest.approx(math.log(2))


def test_a_margin_asks_for_so_much_more():
    winner, loser = tensor(1.0), tensor(0.2)
    assert bradley_terry(winner, loser, tensor(0.8)).item() == pytest.approx(math.log(2), abs=1e-12)
    assert bradley_terry(winner, loser, 2.0).item() == pytest.approx(math.log(1 + math.exp(1.2)), abs=1e-12)


def test_extreme_rewards_stay_finite():
    assert bradley_terry(tensor(-1e4), tensor(1e4)).item() == 2e4
    assert bradley_terry(tensor(1e4), tensor(-1e4)).item() == 0


def test_centring_and_squared_errors():
    assert centring(tensor(1.0, 2.0), tensor(-1.0, 0.5)).tolist() == [0.0, 6.25]
    assert squared(tensor(1.0, 2.0), tensor(-1.0, 0.5)).tolist() == [4.0, 2.25]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_ordinal_is_the_mean_cross_entropy_of_the_thresholds():
    cuts = tensor(-1.0, 0.5)
    for level in range(3):
        above = [float(level > t) for t in range(2)]
        parts = [
            -math.log(sigmoid(0.3 - cut)) if up else -math.log(1 - sigmoid(0.3 - cut))
            for cut, up in zip((-1.0, 0.5), above, strict=True)
        ]
        found = ordinal(tensor(0.3), cuts[None], tensor(float(level)))
        assert found.item() == pytest.approx(sum(parts) / 2, abs=1e-12)


def test_ordinal_leaves_out_thresholds_that_an_objective_has_not():
    whole = ordinal(tensor(0.3), tensor(-1.0)[None], tensor(1.0))
    cuts = torch.tensor([[-1.0, float("nan")]], dtype=torch.float64, requires_grad=True)
    padded = ordinal(tensor(0.3), cuts, tensor(1.0))
    assert padded.item() == whole.item()
    padded.sum().backward()
    assert cuts.grad[0, 1] == 0 and cuts.grad[0, 0] != 0


@pytest.fixture
def head():
    torch.manual_seed(0)
    units, levels = ["rating", "ordinal", "logit"], [(), (1.0, 2.0, 5.0), ()]
    return RewardHead(8, units, levels, RewardHeadConfig()).double()


@torch.no_grad()
def test_values_and_expected_ratings_by_unit(head):
    head.rating_mean[0], head.rating_std[0] = 3.0, 2.0
    head.cuts[1] = tensor(-1.0, 0.5)
    raw = tensor(0.5, 0.25, -1.5)[None]
    assert head.values(raw)[0].tolist() == [4.0, 0.25, -1.5]
    found = head.ratings(raw)[0].tolist()
    above = [sigmoid(0.25 + 1.0), sigmoid(0.25 - 0.5)]
    by_level = 1.0 * (1 - above[0]) + 2.0 * (above[0] - above[1]) + 5.0 * above[1]
    assert found[:2] == [4.0, pytest.approx(by_level, abs=1e-12)] and math.isnan(found[2])


@torch.no_grad()
def test_ordinal_thresholds_start_at_the_ratings_frequencies(head):
    head.start_cuts(1, torch.tensor([0, 0, 1, 2]))
    assert torch.sigmoid(-head.cuts[1]).tolist() == pytest.approx([0.5, 0.25])
    assert head.ratings(tensor(0.0, 0.0, 0.0)[None])[0, 1].item() == pytest.approx((1 + 1 + 2 + 5) / 4)


def test_the_first_rewards_are_near_zero_and_every_part_of_the_head_is_used():
    torch.manual_seed(0)
    hidden = torch.randn(5, 8) * 30
    for config in (RewardHeadConfig(), RewardHeadConfig(depth=2, width=16, dropout=0.5)):
        head = RewardHead(8, ["logit"], [()], config)
        assert head.eval()(hidden).abs().max() < 0.5
        head.train()
        (head(hidden).sum()).backward()
        assert all(each.grad is not None for each in head.parameters())
        assert len(head.layers) == 3 + 2 * config.depth
        assert config.dropout == 0 or not torch.equal(head(hidden), head(hidden))
