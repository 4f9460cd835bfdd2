"""The head that senses weights: divergences by hand, pins, and that it is fitted, saved and loaded as any other."""

from __future__ import annotations

import math

import pytest
import torch

from paretune.errors import InputError
from paretune.policy.head import HeadConfig, SensingHead
from paretune.policy.head_kinds import Simplex
from paretune.training.head_fit import fit_head

NAN = math.nan
ONE = torch.ones(3)


def raw_of(*weights):
    """Raw outputs that say these weights."""
    return torch.tensor([weights]).log()


def divergence(target, said):
    return sum(t * math.log(t / p) for t, p in zip(target, said, strict=True) if t > 0)


def test_the_loss_is_the_divergence_of_what_is_said_from_the_target():
    head = SensingHead(4, 3, HeadConfig(kind="simplex"))
    raw = torch.cat([raw_of(0.5, 0.3, 0.2), raw_of(0.1, 0.1, 0.8)])
    targets = torch.tensor([[0.6, 0.2, 0.2], [0.0, 0.5, 0.5]])
    each = [divergence([0.6, 0.2, 0.2], [0.5, 0.3, 0.2]), divergence([0.0, 0.5, 0.5], [0.1, 0.1, 0.8])]
    for standardise in (False, True):
        assert head.loss(raw, targets, standardise=standardise).item() == pytest.approx(sum(each) / 2)
    assert head.kind.each(raw, targets[:, None], ONE).tolist() == pytest.approx([sum(each)] * 3)
    assert head.loss(raw[:1], torch.tensor([[0.5, 0.3, 0.2]]), standardise=False).item() == pytest.approx(0, abs=1e-6)


def test_a_target_without_an_objective_speaks_of_the_others_among_themselves():
    kind, raw = Simplex(3), raw_of(0.5, 0.3, 0.2).requires_grad_()
    loss = kind.total(raw, torch.tensor([[[0.75, NAN, 0.25]]]), ONE)
    assert loss.item() == pytest.approx(2 * divergence([0.75, 0.25], [0.5 / 0.7, 0.2 / 0.7]), abs=1e-6)
    loss.backward()
    assert raw.grad[0, 1] == 0 and raw.grad[0, 0] < 0
    nothing = kind.total(raw, torch.full((1, 1, 3), NAN), ONE)
    assert nothing.item() == 0 and torch.isfinite(torch.autograd.grad(nothing, raw)[0]).all()


def test_several_good_completions_are_averaged():
    raw, goods = raw_of(0.5, 0.3, 0.2), torch.tensor([[[0.6, 0.2, 0.2], [0.2, 0.6, 0.2]]])
    mean = torch.tensor([[[0.4, 0.4, 0.2]]])
    assert Simplex(3).total(raw, goods, ONE).item() == pytest.approx(Simplex(3).total(raw, mean, ONE).item())


def test_it_starts_at_the_mean():
    mean = torch.tensor([0.7, 0.2, 0.1])
    torch.testing.assert_close(Simplex(3).profile(Simplex(3).start(mean, ONE)[None], torch.eye(3))[0], mean)


def test_pinned_weights_are_kept_and_the_others_keep_their_proportions():
    head, raw = SensingHead(4, 3, HeadConfig(kind="simplex")), raw_of(0.5, 0.3, 0.2).repeat(4, 1)
    pins = torch.tensor([[NAN, NAN, NAN], [0.75, NAN, NAN], [0.1, 0.4, NAN], [1.0, NAN, 0.0]])
    found = head.predict(raw, pins)
    wanted = [[0.5, 0.3, 0.2], [0.75, 0.15, 0.1], [0.1, 0.4, 0.5], [1.0, 0.0, 0.0]]
    torch.testing.assert_close(found.profile_BM, torch.tensor(wanted))
    assert found.low_BM is None and found.high_BM is None
    torch.testing.assert_close(head.predict(raw).profile_BM, raw.softmax(-1))
    with pytest.raises(InputError, match="level must be one of"):
        head.predict(raw, level=0.42)


@pytest.mark.parametrize("skip", [False, True])
def test_fitting_finds_weights_that_depend_on_the_prompt(skip):
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(300, 6, generator=draw)
    targets = torch.softmax(1.5 * features[:, :3], -1)
    torch.manual_seed(0)
    head = SensingHead(6, 3, HeadConfig(kind="simplex", width=16, depth=1, dropout=0.0, skip=skip))
    head.set_statistics(targets.mean(0), targets.std(0, correction=0), start_at_mean=True)
    start = head.loss(head(features), targets, standardise=True).item()
    fit = fit_head(head, features, targets, None, epochs=40, lr=1e-2, seed=0, standardise=True)
    found = head.profile(head(features))
    torch.testing.assert_close(found.sum(-1), torch.ones(300))
    assert head.loss(head(features), targets, standardise=True).item() < 0.2 * start
    assert min(fit.r2) > 0.7 and fit.calibrated_on == 0 and not bool(head.calibrated)
    torch.testing.assert_close(fit.out_of_fold.sum(-1), torch.ones(300))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_fitting_works_from_one_row_on(rows):
    features, targets = torch.randn(rows, 4), torch.softmax(torch.randn(rows, 3), -1)
    targets[0, 1] = NAN
    head = SensingHead(4, 3, HeadConfig(kind="simplex", width=8, depth=1))
    fit_head(head, features, targets, None, epochs=3, lr=1e-3, seed=0, standardise=False)
    assert torch.isfinite(head.profile(head(features))).all()
