"""Beliefs in probit space: conditionals by hand and against torch.distributions, marginal likelihoods, quantiles."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from paretune.policy.belief import (
    Belief,
    belief_of,
    conformal_quantile,
    measured,
    negative_log_likelihood,
    probit,
    residual_covariance,
    whitened,
)

NAN = math.nan


def random_belief(rows=5, m=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    factor = torch.randn(rows, m, m, generator=draw, dtype=torch.float64).tril() + 0.5 * torch.eye(m)
    return Belief(torch.randn(rows, m, generator=draw, dtype=torch.float64), factor @ factor.mT)


def test_probit_is_the_inverse_normal_of_clipped_values():
    found = probit(torch.tensor([0.5, 0.8413447, 0.0, 1.0, NAN]))
    assert found[:4].tolist() == pytest.approx([0, 1, -2.3263, 2.3263], abs=1e-3) and math.isnan(found[4])


def test_a_two_dimensional_conditional_worked_by_hand():
    # mu (0, 1), variances 1 and 4, covariance 1.2; the first is pinned to Phi(1)
    belief = Belief(torch.tensor([[0.0, 1.0]]), torch.tensor([[[1.0, 1.2], [1.2, 4.0]]]))
    given = belief.given(torch.tensor([[0.8413447, NAN]]))
    assert given.mu[0].tolist() == pytest.approx([1.0, 1.0 + 1.2 * 1.0], abs=1e-5)
    assert given.cov[0, 1, 1].item() == pytest.approx(4.0 - 1.2 * 1.2, abs=1e-5)
    assert given.cov[0, 0].tolist() == [0, 0] and given.cov[0, 1, 0] == 0
    wanted = Normal(0.0, 1.0).cdf(torch.tensor(2.2 / math.sqrt(1 + 2.56))).item()
    assert given.profile()[0].tolist() == pytest.approx([0.8413447, wanted], abs=1e-5)


def test_conditioning_is_the_ratio_of_joint_and_marginal_density():
    belief = random_belief()
    pins = torch.full((5, 4), NAN, dtype=torch.float64)
    pins[:, 1], pins[:, 3] = 0.3, 0.9
    given = belief.given(pins)
    free, known = [0, 2], [1, 3]
    z = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z[:, known] = probit(pins[:, known])
    joint = MultivariateNormal(belief.mu, belief.cov).log_prob(z)
    marginal = MultivariateNormal(belief.mu[:, known], belief.cov[:, known][:, :, known]).log_prob(z[:, known])
    conditional = MultivariateNormal(given.mu[:, free], given.cov[:, free][:, :, free]).log_prob(z[:, free])
    torch.testing.assert_close(conditional, joint - marginal)


def test_rows_with_different_pins_are_each_as_alone():
    belief, draw = random_belief(rows=16), torch.Generator().manual_seed(3)
    pins = torch.rand(16, 4, generator=draw, dtype=torch.float64)
    pins[torch.rand(16, 4, generator=draw) < 0.5] = NAN
    together = belief.given(pins)
    for row in range(16):
        alone = Belief(belief.mu[row : row + 1], belief.cov[row : row + 1]).given(pins[row : row + 1])
        torch.testing.assert_close(together.mu[row : row + 1], alone.mu)
        torch.testing.assert_close(together.cov[row : row + 1], alone.cov)
    bare = belief.given(torch.full_like(pins, NAN))
    torch.testing.assert_close(bare.mu, belief.mu)
    torch.testing.assert_close(bare.cov, belief.cov)
    assert belief.given(torch.full_like(pins, 0.25)).cov.abs().max() == 0


def test_the_mean_of_phi_is_its_closed_form():
    belief = Belief(torch.tensor([[0.7]]), torch.tensor([[[1.7]]]))
    z = 0.7 + math.sqrt(1.7) * torch.randn(400_000, generator=torch.Generator().manual_seed(0))
    assert belief.profile().item() == pytest.approx(torch.special.ndtr(z).mean().item(), abs=2e-3)


def test_a_networks_own_profile_is_the_mean_of_the_belief_made_of_it():
    profile = torch.tensor([[0.02, 0.5, 0.97]])
    cov = torch.tensor([[1.0, 0.4, 0.0], [0.4, 2.0, 0.3], [0.0, 0.3, 0.5]])
    belief = belief_of(profile, measured(torch.tensor([[1.0, 0.5, 2.0]]).diag_embed(), cov))
    torch.testing.assert_close(belief.profile(), profile)
    assert belief.sigma[0].tolist() == pytest.approx([1.0, 0.5 * math.sqrt(2), 2 * math.sqrt(0.5)])


def test_pins_on_what_does_not_correlate_change_nothing():
    belief = belief_of(torch.tensor([[0.3, 0.8]]), torch.eye(2)[None])
    assert belief.given(torch.tensor([[0.99, NAN]])).profile()[0, 1].item() == pytest.approx(0.8, abs=1e-6)


def test_the_likelihood_is_that_of_torch_distributions():
    belief, draw = random_belief(), torch.Generator().manual_seed(4)
    z, factor = torch.randn(5, 4, generator=draw, dtype=torch.float64), torch.linalg.cholesky(belief.cov)
    wanted = -MultivariateNormal(belief.mu, belief.cov).log_prob(z)
    torch.testing.assert_close(negative_log_likelihood(belief.mu, factor, z), wanted)


def test_missing_objectives_leave_exactly_the_marginal_likelihood():
    belief, draw = random_belief(), torch.Generator().manual_seed(5)
    z, factor = torch.randn(5, 4, generator=draw, dtype=torch.float64), torch.linalg.cholesky(belief.cov)
    kept = [[0, 1, 2, 3], [1, 3], [2], [], [0, 3]]
    for row, those in enumerate(kept):
        z[row, [i for i in range(4) if i not in those]] = NAN
    factor.requires_grad_()
    found = negative_log_likelihood(belief.mu, factor, z)
    for row, those in enumerate(kept):
        if those:
            own = MultivariateNormal(belief.mu[row, those], belief.cov[row][those][:, those])
            assert found[row].item() == pytest.approx(-own.log_prob(z[row, those]).item())
        else:
            assert found[row].item() == pytest.approx(0)
    found.sum().backward()
    assert torch.isfinite(factor.grad).all()


def test_whitened_residuals_of_a_true_covariance_have_the_identity_as_theirs_and_a_wrong_one_is_put_right():
    draw, n = torch.Generator().manual_seed(6), 20_000
    size = torch.where(torch.rand(n, generator=draw) < 0.5, 0.5, 2.0)[:, None]  # one prompt is told from another
    truth = torch.linalg.cholesky(torch.tensor([[0.49, 0.42], [0.42, 0.64]]))
    error = size * (torch.randn(n, 2, generator=draw) @ truth.T)
    error[::4, 0], error[1::4, 1] = NAN, NAN
    right = size[..., None] * truth
    cov = residual_covariance(whitened(right, error))
    torch.testing.assert_close(cov, torch.eye(2), atol=0.04, rtol=0)
    torch.testing.assert_close(whitened(right, error).isnan(), error.isnan())
    wrong = size[..., None] * torch.diag(torch.tensor([2.0, 3.0]))  # too wide, and no correlation
    found = measured(wrong, residual_covariance(whitened(wrong, error)))
    torch.testing.assert_close(found, right @ right.mT, atol=0.1, rtol=0.05)


def test_intervals_reach_the_ends_where_values_were_clipped():
    belief = Belief(torch.tensor([[-2.3, 0.0, 2.3]]), torch.eye(3)[None] * 0.01)
    low, high = belief.interval(torch.tensor([1.0, 1.0, 1.0]))
    assert low[0, 0] == 0 and high[0, 2] == 1
    assert [low[0, 1].item(), high[0, 1].item()] == pytest.approx([0.4602, 0.5398], abs=1e-4)


def test_residual_covariance_is_near_the_truth_and_always_positive_definite():
    draw = torch.Generator().manual_seed(0)
    truth = torch.tensor([[1.0, 0.6], [0.6, 1.0]])
    rows = torch.randn(4000, 2, generator=draw) @ torch.linalg.cholesky(truth).T
    rows[::3, 1] = NAN
    torch.testing.assert_close(residual_covariance(rows), truth, atol=0.05, rtol=0)
    for bad in (torch.full((3, 2), NAN), torch.zeros(5, 2), torch.ones(1, 2), torch.ones(2, 2) * torch.tensor([1, 2])):
        found = residual_covariance(bad)
        assert torch.linalg.eigvalsh(found).min() > 0 and torch.isfinite(found).all()
    same = torch.randn(500, 1, generator=draw).expand(-1, 3)
    assert torch.linalg.eigvalsh(residual_covariance(same)).min() > 1e-3


def test_conformal_quantile_by_hand():
    scores = torch.tensor([5.0, 1.0, 3.0, NAN, 2.0, 4.0])
    assert conformal_quantile(scores, 0.5, 99.0) == 3  # ceil(6 * 0.5) = 3rd smallest
    assert conformal_quantile(scores, 0.8, 99.0) == 5  # ceil(4.8) = 5th
    assert conformal_quantile(scores, 0.9, 99.0) == 99  # ceil(5.4) = 6th of 5
    assert conformal_quantile(scores[3:4], 0.5, 99.0) == 99
