"""What raw outputs mean and how they are taught: soft labels, expectations, quantiles and likelihoods by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from paretune.policy.belief import probit
from paretune.policy.head import HeadConfig, SensingHead
from paretune.policy.head_kinds import FLOOR, KINDS, Binned, Gaussian, Regression, mean_target

NAN = math.nan
ONE = torch.ones(2)


def test_the_mean_over_the_good_completions_leaves_out_what_is_missing():
    targets = torch.tensor([[[0.2, NAN], [0.4, NAN]], [[NAN, 0.5], [0.9, 0.7]]])
    torch.testing.assert_close(mean_target(targets), torch.tensor([[0.3, NAN], [0.9, 0.6]]), equal_nan=True)


def test_regression_learns_the_mean_of_the_good_completions():
    raw = torch.logit(torch.tensor([[0.5, 0.5]]))
    targets = torch.tensor([[[0.2, 0.9], [0.4, NAN]]])
    assert Regression(2).total(raw, targets, ONE).item() == pytest.approx(0.2**2 + 0.4**2)


def test_soft_labels_lie_between_neighbouring_centres():
    kind = Binned(1, 5)  # centres 0, .25, .5, .75, 1
    found = kind.soft_labels(torch.tensor([0.0, 0.3, 0.5, 1.0]))
    wanted = [[1, 0, 0, 0, 0], [0, 0.8, 0.2, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float32))
    assert kind.soft_labels(torch.tensor(NAN)).isnan().all()
    values = torch.rand(50)
    torch.testing.assert_close(kind.soft_labels(values) @ kind.centres(values), values)


def test_binned_expectation_and_quantiles_by_hand():
    kind = Binned(1, 3)  # centres 0, .5, 1; edges 0, .25, .75, 1
    raw = torch.log(torch.tensor([[0.2, 0.5, 0.3]]))
    assert kind.expectation(raw).item() == pytest.approx(0.55)
    for q, value in ((0.1, 0.125), (0.2, 0.25), (0.45, 0.5), (0.7, 0.75), (0.85, 0.875), (1.0, 1.0)):
        assert kind.quantile(raw, q).item() == pytest.approx(value, abs=1e-5)


def test_binned_loss_is_the_cross_entropy_of_averaged_labels():
    kind, p = Binned(2, 3), torch.tensor([0.2, 0.5, 0.3])
    raw = torch.log(p).repeat(2)[None]
    targets = torch.tensor([[[0.0, NAN], [0.25, NAN]]])  # labels (1, 0, 0) and (.5, .5, 0)
    wanted = -(0.75 * math.log(0.2) + 0.25 * math.log(0.5))
    assert kind.each(raw, targets, ONE).tolist() == pytest.approx([wanted, 0])


def test_binned_starts_at_any_mean():
    mean = torch.tensor([0.05, 0.4, 0.93])
    for bins in (2, 11):
        kind = Binned(3, bins)
        torch.testing.assert_close(
            kind.expectation(kind.start(mean, torch.full((3,), 0.2))[None])[0], mean, atol=1e-3, rtol=0
        )


def test_a_peaked_bin_gives_a_narrower_belief_than_a_flat_one():
    kind = Binned(1, 11)
    peaked, flat = torch.zeros(1, 11), torch.zeros(1, 11)
    peaked[0, 5] = 9.0
    narrow, wide = (kind.belief(raw, torch.eye(1)).sigma.item() for raw in (peaked, flat))
    assert FLOOR <= narrow < 0.2 * wide


def test_gaussian_parts_and_likelihood():
    kind = Gaussian(2)
    raw = torch.tensor([[0.3, -0.2, 0.5, 0.7, -1.0]])
    mu, factor = kind.parts(raw)
    assert mu[0].tolist() == pytest.approx([0.3, -0.2])
    soft = torch.nn.functional.softplus
    wanted = [[soft(torch.tensor(0.5)) + FLOOR, 0], [0.7, soft(torch.tensor(-1.0)) + FLOOR]]
    torch.testing.assert_close(factor[0], torch.tensor(wanted))
    targets = torch.tensor([[[0.2, 0.9], [0.4, 0.6], [NAN, NAN]]])
    own = MultivariateNormal(mu[0], factor[0] @ factor[0].T)
    average = -own.log_prob(probit(targets[0, :2])).mean()
    torch.testing.assert_close(kind.total(raw, targets, ONE), average)
    torch.testing.assert_close(kind.total(raw.repeat(2, 1), targets.repeat(2, 1, 1), ONE), 2 * average)


def test_gaussian_starts_at_the_mean_with_a_spread():
    kind, mean = Gaussian(3), torch.tensor([0.1, 0.5, 0.9])
    raw = kind.start(mean, torch.tensor([0.1, 0.2, 0.1]))[None]
    torch.testing.assert_close(kind.profile(raw, torch.eye(3))[0], mean, atol=1e-3, rtol=0)
    assert (kind.belief(raw, torch.eye(3)).sigma >= 0.29).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_every_kind_promises(kind):
    torch.manual_seed(0)
    head = SensingHead(6, 3, HeadConfig(kind=kind, width=8, depth=1, skip=True, standardise_input=True)).eval()
    hidden = torch.randn(5, 6)
    raw = head(hidden)
    assert raw.shape == (5, head.kind.outputs) == (5, len(head.kind.group()))
    profile = head.profile(raw)
    assert profile.shape == (5, 3) and ((profile >= 0) & (profile <= 1)).all()
    torch.testing.assert_close(head(hidden[2:3]), raw[2:3])
    torch.testing.assert_close(head.belief(raw).profile(), profile, atol=1e-5, rtol=0)
    assert (torch.linalg.eigvalsh(head.belief(raw).cov) > 0).all()
    # what is missing teaches nothing, and [B, M] is [B, 1, M]
    targets = torch.rand(5, 3, generator=torch.Generator().manual_seed(1))
    targets[1], targets[3, 0] = NAN, NAN
    loss = head.loss(raw, targets, standardise=False)
    assert loss.item() == pytest.approx(head.loss(raw, targets[:, None], standardise=False).item())
    present = targets.isnan().logical_not().any(-1)
    assert loss.item() == pytest.approx(head.loss(raw[present], targets[present], standardise=False).item(), rel=1e-5)
    head.loss(head(hidden), torch.full((5, 3), NAN), standardise=True).backward()
    assert all(each.grad is None or each.grad.abs().sum() == 0 for each in head.parameters())
    # a batch's loss is the sum of its parts by the targets present
    parts = sum(
        head.loss(raw[i], targets[i], standardise=False) * head.present(targets[i]) for i in ([0, 1], [2, 3, 4])
    )
    assert (parts / head.present(targets)).item() == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_a_head_learns_jointly(kind):
    torch.manual_seed(0)
    head = SensingHead(6, 2, HeadConfig(kind=kind, width=8, depth=1, skip=True, input_norm=True))
    hidden = torch.randn(4, 6, requires_grad=True)
    head.loss(head(hidden), torch.rand(4, 3, 2), standardise=True).backward()
    assert hidden.grad.abs().sum() > 0
    assert all(each.grad.abs().sum() > 0 for each in head.parameters())
