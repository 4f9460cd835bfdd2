"""Fitting the head alone: it learns what can be learnt, shrinks what cannot, and its intervals keep their promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paretune.errors import InputError
from paretune.evaluation.head import fit_ridge
from paretune.policy.belief import probit
from paretune.policy.head import HeadConfig, SensingHead
from paretune.policy.head_kinds import KINDS
from paretune.training.head_fit import ENOUGH, LARGE, fit_head, make_folds

NAN = math.nan
OURS = dict(width=16, depth=1, dropout=0.1, hidden_dropout=0.1, standardise_input=True, skip=True)
OPTIONS = dict(epochs=8, lr=1e-2, seed=0, standardise=True, folds=4)


def data(rows, seed, noise=0.0, features=6):
    """Targets [N, 2] whose probits (nearly) are two features."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=draw)
    return x, torch.special.ndtr(0.7 * (x[:, :2] + noise * torch.randn(rows, 2, generator=draw)))


def fitted(train, validation=None, config=None, hidden=None, **options):
    """A head fitted on features and targets, and what fitting found."""
    torch.manual_seed(0)
    targets = train[1] if train[1].dim() == 2 else train[1].nanmean(1)
    head = SensingHead(train[0].shape[1], targets.shape[1], config or HeadConfig(**OURS))
    mean = targets.nanmean(0)
    head.set_statistics(mean, (targets - mean).square().nanmean(0).sqrt(), start_at_mean=True)
    return head, fit_head(head, *train, validation, **{**OPTIONS, **options})


def r2(truth, guess):
    return 1 - (truth - guess).square().sum(0) / (truth - truth.mean(0)).square().sum(0)


def sensed(head, features):
    with torch.no_grad():
        return head.profile(head(features))


# --- how well it fits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_it_learns_what_is_there(kind, skip):
    config = HeadConfig(kind=kind, **{**OURS, "skip": skip})
    head, fit = fitted(data(300, 0), data(100, 1), config, epochs=40)
    features, targets = data(500, 2)
    assert (r2(targets, sensed(head, features)) > 0.85).all() and not head.training
    with torch.no_grad():
        held = data(100, 1)
        assert fit.loss == pytest.approx(head.loss(head(held[0]), held[1], standardise=True).item(), rel=1e-4)
    assert all(each > 0.8 for each in fit.r2) and fit.epochs > 0


def test_it_is_as_good_as_ridge_where_the_truth_is_linear():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(700, 40, generator=draw)
    weights = torch.randn(40, 2, generator=draw) / 40**0.5
    targets = (0.5 + 0.1 * (x @ weights + torch.randn(700, 2, generator=draw))).clamp(0, 1)
    head, _ = fitted((x[:200], targets[:200]))
    own = r2(targets[200:], sensed(head, x[200:]))
    for column in range(2):
        probe = fit_ridge(x[:200].numpy(), targets[:200, column].double().numpy()).predict(x[200:].numpy())
        ridge = r2(targets[200:, column], torch.from_numpy(probe))
        assert own[column] > max(0.25, ridge - 0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_shrinks_to_the_mean(kind):
    draw = torch.Generator().manual_seed(1)
    x, targets = torch.randn(900, 30, generator=draw), torch.rand(900, 2, generator=draw)
    targets[:, 1] = torch.special.ndtr(x[:, 0])  # one objective can be sensed, one cannot
    head, fit = fitted((x[:300], targets[:300]), config=HeadConfig(kind=kind, **OURS))
    noise, signal = r2(targets[300:], sensed(head, x[300:])).tolist()
    assert noise > -0.03 and signal > 0.7
    assert fit.r2[0] > -0.03 and np.array(fit.mix)[:, 0].max() < np.array(fit.mix)[:, 1].max()


def test_out_of_fold_profiles_are_those_of_heads_that_did_not_see_the_row():
    # pure noise that a head would learn by heart: out of fold there is nothing to be seen of it
    draw = torch.Generator().manual_seed(2)
    x, targets = torch.randn(60, 100, generator=draw), torch.rand(60, 1, generator=draw)
    head, fit = fitted((x, targets))
    assert fit.out_of_fold.shape == (60, 1) and r2(targets, fit.out_of_fold).item() < 0.1
    # and of what is there, it is seen
    x, targets = data(300, 0, noise=0.3)
    head, fit = fitted((x, targets))
    assert (r2(targets, fit.out_of_fold) > 0.7).all() and not torch.equal(fit.out_of_fold, sensed(head, x))


# --- intervals --------------------------------------------------------------------------------------------------------


def levels(x, draw, shares=(0.1, 0.5, 0.9)):
    """Targets that take three values, drawn by a feature and noise."""
    z = x[:, :2] + torch.randn(len(x), 2, generator=draw)
    return torch.tensor(shares)[(z > -0.5).long() + (z > 0.5).long()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("validation", "discrete"), [(0, True), (60, False), (600, True)])
def test_the_80_percent_interval_holds_75_to_85_percent(kind, validation, discrete):
    shares = []
    for seed in (3, 4):  # of 400 scores the quantile itself is off by .02, one standard deviation
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(3000, 12, generator=draw)
        if discrete:
            targets = levels(x, draw)
        else:  # noisier where the third feature is positive
            z = x[:, :2] + (0.4 + 0.4 * (x[:, 2:3] > 0)) * torch.randn(3000, 2, generator=draw)
            targets = torch.special.ndtr(z)
        held = (x[400 : 400 + validation], targets[400 : 400 + validation]) if validation else None
        head, fit = fitted((x[:400], targets[:400]), held, HeadConfig(kind=kind, **OURS))
        assert fit.calibrated_on == (validation if validation >= ENOUGH else 400 + validation) and bool(head.calibrated)
        with torch.no_grad():
            found = head.predict(head(x[1000:]))
        shares.append((targets[1000:] >= found.low_BM - 1e-6) & (targets[1000:] <= found.high_BM + 1e-6))
    inside = torch.cat(shares).float().mean(0)
    assert inside.tolist() == pytest.approx([0.8, 0.8], abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_with_several_good_completions_the_interval_is_about_their_mean(kind):
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(2400, 8, generator=draw)
    centre = x[:, None, :2] + 0.3 * torch.randn(2400, 1, 2, generator=draw)
    goods = torch.special.ndtr(centre + 0.6 * torch.randn(2400, 4, 2, generator=draw))
    goods[::2, 2:] = NAN  # two good ones or four
    head, _ = fitted((x[:400], goods[:400]), config=HeadConfig(kind=kind, **OURS))
    with torch.no_grad():
        found = head.predict(head(x[400:]))
    mean = goods[400:].nanmean(1)
    assert (r2(mean, found.profile_BM) > 0.7).all()
    inside = ((mean >= found.low_BM) & (mean <= found.high_BM)).float().mean(0)
    assert inside.tolist() == pytest.approx([0.8, 0.8], abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_given_the_true_value_of_one_the_other_is_sensed_better_and_still_covered(kind):
    draw = torch.Generator().manual_seed(5)
    x, shared = torch.randn(2500, 8, generator=draw), torch.randn(2500, 1, generator=draw)
    z = x[:, :2] + 0.7 * shared + 0.3 * torch.randn(2500, 2, generator=draw)
    targets = torch.special.ndtr(z / 1.3)
    head, _ = fitted((x[:500], targets[:500]), config=HeadConfig(kind=kind, **OURS))
    pins = torch.stack([targets[500:, 0], torch.full((2000,), NAN)], 1)
    with torch.no_grad():
        raw = head(x[500:])
        plain, given = head.predict(raw), head.predict(raw, pins)
    alone, helped = (r2(targets[500:], each.profile_BM)[1].item() for each in (plain, given))
    assert helped > alone + 0.1
    inside = ((targets[500:] >= given.low_BM) & (targets[500:] <= given.high_BM))[:, 1].float().mean().item()
    assert inside == pytest.approx(0.8, abs=0.08)
    assert (given.high_BM - given.low_BM)[:, 1].mean() < 0.8 * (plain.high_BM - plain.low_BM)[:, 1].mean()


def test_a_pin_tells_the_gaussian_head_as_much_as_it_tells_the_regression_head():
    gains = {}
    for kind in ("regression", "gaussian"):
        draw = torch.Generator().manual_seed(1)
        x, shared = torch.randn(2150, 12, generator=draw), torch.randn(2150, 1, generator=draw)
        z = 0.8 * x[:, :2] + 0.7 * (0.85**0.5 * shared + 0.15**0.5 * torch.randn(2150, 2, generator=draw))
        targets = torch.special.ndtr(z)
        head, _ = fitted((x[:150], targets[:150]), config=HeadConfig(kind=kind, **OURS), epochs=30, lr=3e-3)
        pins = torch.stack([targets[150:, 0], torch.full((2000,), NAN)], 1)
        with torch.no_grad():
            raw = head(x[150:])
            alone, given = (r2(targets[150:], head.predict(raw, each).profile_BM)[1] for each in (None, pins))
            error = probit(targets[150:]) - head.belief(raw).mu
            stated = head.belief(raw).cov.mean(0)
        gains[kind] = (given - alone).item()
        real = error.T @ error / len(error)
        assert (stated.diagonal() / real.diagonal()).sqrt().tolist() == pytest.approx([1.1, 1.1], abs=0.15)
        correlation = [each[0, 1] / (each[0, 0] * each[1, 1]).sqrt() for each in (stated, real)]
        assert correlation[0].item() == pytest.approx(correlation[1].item(), abs=0.08)
    assert gains["gaussian"] > gains["regression"] - 0.01 and gains["regression"] > 0.25


# --- missing, few, many, odd ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_missing_targets_are_masked(kind):
    features, targets = data(300, 0)
    holes = targets.clone()
    holes[::2, 0], holes[:5] = NAN, NAN
    head, fit = fitted((features, holes), config=HeadConfig(kind=kind, **OURS))
    assert (r2(data(200, 1)[1], sensed(head, data(200, 1)[0])) > 0.8).all()
    assert all(torch.isfinite(each).all() for each in head.state_dict().values())
    assert torch.isfinite(fit.out_of_fold).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(("rows", "validation"), [(1, 0), (1, 3), (2, 0), (3, 0), (7, 3)])
def test_a_handful_of_rows_gives_a_finite_head(kind, skip, rows, validation):
    held = data(validation, 1) if validation else None
    head, fit = fitted(data(rows, 0), held, HeadConfig(kind=kind, **{**OURS, "skip": skip}), epochs=5)
    assert all(torch.isfinite(each).all() for each in head.state_dict().values())
    assert math.isfinite(fit.loss) and torch.isfinite(fit.out_of_fold).all()
    assert fit.folds == (0 if rows == 1 else min(rows, 4))
    with torch.no_grad():
        found = head.predict(head(10 * data(4, 2)[0]))
    assert torch.isfinite(found.profile_BM).all()
    assert bool(head.calibrated) == (rows > 1 or validation > 0)
    assert found.low_BM is None or torch.isfinite(found.low_BM).all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_objective_without_any_target_or_with_a_constant_one_stays_at_its_value(kind):
    features, targets = data(80, 0)
    targets[:, 1] = 0.7
    head, fit = fitted((features, targets), config=HeadConfig(kind=kind, **OURS))
    assert sensed(head, features)[:, 1].sub(0.7).abs().max() < 0.05 and fit.r2[1] is None
    targets[:, 1] = NAN
    torch.manual_seed(0)
    head = SensingHead(6, 2, HeadConfig(kind=kind, **OURS))
    fit = fit_head(head, features, targets, None, **OPTIONS)
    assert torch.isfinite(fit.out_of_fold).all() and fit.r2[1] is None and fit.r2[0] > 0.5


def test_folds_hold_every_row_out_once_and_large_data_needs_two():
    draw = torch.Generator().manual_seed(0)
    for rows, count in ((1, 0), (2, 2), (13, 5), (LARGE, 5), (LARGE + 1, 2)):
        folds = make_folds(range(rows), 5, draw)
        assert len(folds) == count
        if folds:
            assert sorted(torch.cat([fold.held for fold in folds]).tolist()) == list(range(rows))
        for fold in folds:
            assert sorted([*fold.train.tolist(), *fold.held.tolist()]) == list(range(rows))


def test_features_that_are_no_numbers_are_refused():
    features, targets = data(20, 0)
    features[3, 1] = NAN
    with pytest.raises(InputError, match="NaN or infinity"):
        fitted((features, targets))


def test_huge_and_constant_features_do_no_harm():
    features, targets = data(200, 0)
    features = torch.cat([features, torch.full((200, 1), 1e4), 1e4 * torch.randn(200, 1)], 1)
    head, _ = fitted((features, targets))
    assert (r2(targets, sensed(head, features)) > 0.8).all()


# --- reproducibility --------------------------------------------------------------------------------------------------


def test_the_seed_decides_and_global_random_state_is_left_alone():
    def weights(seed):
        torch.manual_seed(0)
        head = SensingHead(6, 2, HeadConfig(**OURS))
        torch.manual_seed(seed + 99)  # whatever the state is
        before = torch.get_rng_state()
        fit_head(head, *data(100, 0, 0.3), None, **{**OPTIONS, "epochs": 3, "seed": seed})
        assert torch.equal(before, torch.get_rng_state())
        return torch.cat([each.flatten().double() for each in head.state_dict().values()])

    one = weights(0)
    assert torch.equal(one, weights(0)) and not torch.equal(one, weights(1))


def test_what_the_head_held_before_does_not_leak_into_the_fit():
    results = []
    for start in (0, 1):
        torch.manual_seed(start)
        head = SensingHead(6, 2, HeadConfig(**OURS))
        results.append(fit_head(head, *data(100, 0, 0.3), None, **{**OPTIONS, "epochs": 3}).out_of_fold)
    assert torch.equal(*results)


def test_rows_of_one_prompt_are_held_out_together():
    groups = [name for name in "abcdefg" for _ in range(3)] + ["h"]
    folds = make_folds(groups, 4, torch.Generator().manual_seed(0))
    assert len(folds) == 4 and sorted(torch.cat([each.held for each in folds]).tolist()) == list(range(22))
    for fold in folds:
        assert not {groups[i] for i in fold.held.tolist()} & {groups[i] for i in fold.train.tolist()}
        assert len(fold.held) + len(fold.train) == 22
    assert make_folds(["a"] * 5, 4, torch.Generator()) == []


def test_repeated_prompts_with_targets_that_cannot_be_sensed_shrink_to_the_mean():
    draw = torch.Generator().manual_seed(0)
    prompts, copies = 120, 4
    features = torch.randn(prompts, 24, generator=draw).repeat_interleave(copies, 0)
    targets = torch.rand(prompts, 1, generator=draw).repeat_interleave(copies, 0)
    head = SensingHead(24, 1, HeadConfig(width=16, depth=1, standardise_input=True, skip=True))
    options = {"epochs": 10, "lr": 1e-2, "seed": 0, "standardise": True}
    groups = [i // copies for i in range(prompts * copies)]
    fit = fit_head(head, features, targets, None, groups=groups, **options)
    assert abs(fit.r2[0]) < 0.1
    fresh = torch.randn(400, 24, generator=draw)
    with torch.no_grad():
        guess = head.profile(head(fresh))
    assert float(guess.std()) < 0.1 and abs(float(guess.mean()) - 0.5) < 0.1
    blind = fit_head(head, features, targets, None, **options)  # rows taken for prompts: it remembers them
    assert blind.r2[0] > 0.2
