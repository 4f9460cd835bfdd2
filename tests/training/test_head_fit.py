"""Fitting the head alone: it learns what can be learnt, keeps the best epoch, and masks missing targets."""

from __future__ import annotations

import math

import pytest
import torch

from paretune.policy.head import HeadConfig, SensingHead
from paretune.training.head_fit import fit_head


def data(rows, seed, noise=0.0):
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 6, generator=draw)
    return features, torch.sigmoid(features[:, :2] + noise * torch.randn(rows, 2, generator=draw))


def head():
    torch.manual_seed(0)
    return SensingHead(6, 2, HeadConfig(width=32, depth=1, dropout=0.0)).eval()


OPTIONS = dict(epochs=60, lr=1e-2, seed=0, standardise=False)


def test_it_learns_and_returns_the_validation_error_of_the_kept_weights():
    fitted, (features, targets) = head(), data(200, 1)
    best = fit_head(fitted, *data(300, 0), (features, targets), **OPTIONS)
    with torch.no_grad():
        assert best == pytest.approx((fitted(features) - targets).square().mean().item(), rel=1e-5)
    assert best < 0.1 * targets.var().item() and not fitted.training


def test_the_best_epoch_is_kept_even_when_it_is_none():
    # random targets: every epoch only memorises, so the head that predicts the mean is the best there is
    draw = torch.Generator().manual_seed(2)
    train = (torch.randn(20, 6, generator=draw), torch.rand(20, 2, generator=draw))
    held = (torch.randn(200, 6, generator=draw), torch.full((200, 2), 0.5))
    fitted = head()
    fitted.set_statistics(torch.tensor([0.5, 0.5]), torch.ones(2), start_at_mean=True)
    before = {name: each.clone() for name, each in fitted.state_dict().items()}
    with torch.no_grad():
        start = (fitted(held[0]) - held[1]).square().mean().item()
    assert fit_head(fitted, *train, held, **OPTIONS) == pytest.approx(start, rel=1e-5)
    assert all(torch.equal(each, before[name]) for name, each in fitted.state_dict().items())


def test_missing_targets_are_masked():
    features, targets = data(300, 0)
    holes = targets.clone()
    holes[::2, 0] = math.nan
    fitted, held = head(), data(200, 1)
    assert fit_head(fitted, features, holes, held, **OPTIONS) < 0.2 * held[1].var().item()
    assert all(torch.isfinite(each).all() for each in fitted.state_dict().values())


def test_the_seed_decides():
    def weights(seed):
        fitted = head()
        fit_head(fitted, *data(100, 0, 0.3), None, **{**OPTIONS, "epochs": 3, "seed": seed})
        return torch.cat([each.flatten() for each in fitted.state_dict().values()])

    torch.manual_seed(123)
    one = weights(0)
    assert torch.equal(one, weights(0)) and not torch.equal(one, weights(1))
