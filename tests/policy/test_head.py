"""The sensing head: its shape is the paper's, its loss is worked by hand, and it is float32 over any backbone."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from paretune.errors import InputError
from paretune.policy.head import HeadConfig, SensingHead
from paretune.policy.head_kinds import FLOOR

NAN = math.nan


def test_the_papers_architecture():
    layers = list(SensingHead(64, 5, HeadConfig()).layers)
    assert [type(each) for each in layers] == [nn.Dropout, *[nn.Linear, nn.ReLU] * 3, nn.Linear]
    shapes = [(each.in_features, each.out_features) for each in layers if isinstance(each, nn.Linear)]
    assert shapes == [(64, 1024), (1024, 1024), (1024, 1024), (1024, 5)]
    assert layers[0].p == 0.1


def test_depth_zero_is_a_linear_probe_with_sigmoid():
    head = SensingHead(4, 2, HeadConfig(depth=0, input_norm=True)).eval()
    assert [type(each) for each in head.layers] == [nn.LayerNorm, nn.Dropout, nn.Linear]
    x = torch.randn(3, 4)
    linear = head.layers[-1]
    wanted = nn.functional.layer_norm(x, (4,)) @ linear.weight.T + linear.bias
    torch.testing.assert_close(head(x), wanted)
    torch.testing.assert_close(head.profile(head(x)), torch.sigmoid(wanted))


def test_mean_squared_error_with_missing_targets():
    head = SensingHead(4, 2, HeadConfig(width=4))
    predicted = torch.logit(torch.tensor([[0.5, 0.2], [0.9, 0.4]]))
    target = torch.tensor([[0.1, NAN], [0.6, 0.5]])
    # (0.4^2 + 0.3^2 + 0.1^2) / 3
    assert head.loss(predicted, target, standardise=False).item() == pytest.approx(0.26 / 3)


def test_standardised_error_is_in_units_of_the_targets_standard_deviation():
    head = SensingHead(4, 2, HeadConfig(width=4))
    head.set_statistics(torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.05]), start_at_mean=False)
    predicted = torch.logit(torch.tensor([[0.5, 0.2], [0.9, 0.4]]))
    target = torch.tensor([[0.1, NAN], [0.6, 0.5]])
    # (0.4/0.2)^2 + (0.3/0.2)^2 + (0.1/0.05)^2 = 4 + 2.25 + 4
    assert head.loss(predicted, target, standardise=True).item() == pytest.approx(10.25 / 3)
    assert head.loss(predicted, target, standardise=False).item() == pytest.approx(0.26 / 3)


def test_missing_targets_send_no_gradient_and_no_nan():
    head = SensingHead(4, 2, HeadConfig(width=4))
    predicted = torch.logit(torch.tensor([[0.5, 0.2], [0.9, 0.4]])).requires_grad_()
    head.loss(predicted, torch.tensor([[NAN, 0.2], [NAN, 0.1]]), standardise=True).backward()
    assert predicted.grad[:, 0].tolist() == [0, 0]
    assert predicted.grad[1, 1] > 0
    predicted.grad = None
    head.loss(predicted, torch.full((2, 2), NAN), standardise=False).backward()
    assert predicted.grad.abs().sum() == 0


def test_a_constant_target_has_a_floor_under_its_standard_deviation():
    head = SensingHead(4, 1, HeadConfig(width=4))
    head.set_statistics(torch.tensor([0.7]), torch.tensor([0.0]), start_at_mean=True)
    assert math.isfinite(head.loss(torch.tensor([[0.4]]), torch.tensor([[0.7]]), standardise=True).item())


def test_the_untrained_head_starts_near_the_mean():
    head = SensingHead(16, 3, HeadConfig(width=8, depth=1)).eval()
    mean = torch.tensor([0.1, 0.5, 0.97])
    head.set_statistics(mean, torch.ones(3), start_at_mean=True)
    predicted = head.profile(head(torch.randn(50, 16)))
    torch.testing.assert_close(predicted.mean(0), mean, atol=0.03, rtol=0)


@pytest.mark.parametrize("kind", ["binned", "gaussian"])
@pytest.mark.parametrize("skip", [False, True])
def test_every_kind_starts_near_the_mean(kind, skip):
    torch.manual_seed(0)
    head = SensingHead(16, 3, HeadConfig(kind=kind, width=8, depth=1, skip=skip)).eval()
    mean = torch.tensor([0.1, 0.5, 0.9])
    head.set_statistics(mean, torch.full((3,), 0.2), start_at_mean=True)
    torch.testing.assert_close(head.profile(head(torch.randn(50, 16))).mean(0), mean, atol=0.03, rtol=0)


def test_float32_whatever_the_backbone_is():
    head = SensingHead(8, 2, HeadConfig(width=4)).eval()
    x = torch.randn(3, 8).bfloat16()
    found = head(x)
    assert found.dtype == torch.float32 and head.layers[-1].weight.dtype == torch.float32
    torch.testing.assert_close(found, head(x.float()), rtol=0, atol=0)
    assert head(x.double()).dtype == torch.float32
    assert head.double()(x).dtype == torch.float64


def test_statistics_are_saved_with_the_weights():
    head = SensingHead(8, 2, HeadConfig(width=4))
    head.set_statistics(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.4]), start_at_mean=False)
    assert head.state_dict()["target_mean"].tolist() == pytest.approx([0.1, 0.2])
    assert head.state_dict()["target_std"].tolist() == pytest.approx([0.3, 0.4])


def test_config_goes_through_json_and_refuses_the_unknown():
    config = HeadConfig("binned", 7, 2, 0.0, 0.3, input_norm=True, standardise_input=True, skip=True, bins=5)
    assert HeadConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match="Did you mean 'width'"):
        HeadConfig.from_dict({"widht": 3})
    old = {"width": 512, "depth": 2, "dropout": 0.2, "input_norm": True}  # as the first versions saved it
    assert HeadConfig.from_dict(old) == HeadConfig(width=512, depth=2, dropout=0.2, input_norm=True)
    with pytest.raises(
        InputError, match=r"one of regression, binned, gaussian, simplex, not 'gausian'\. Did you mean 'gaussian'"
    ):
        HeadConfig(kind="gausian")
    for bad in ({"bins": 1}, {"hidden_dropout": 1.0}, {"width": 0}, {"depth": -1}, {"dropout": 1.0}, {"dropout": -0.1}):
        with pytest.raises(InputError, match="head:"):
            HeadConfig(**bad)


# --- inputs, mixing ---------------------------------------------------------------------------------------------------


def test_dropout_on_every_hidden_layer_is_asked_for():
    layers = list(SensingHead(8, 2, HeadConfig(width=4, depth=2, dropout=0.1, hidden_dropout=0.3)).layers)
    assert [each.p for each in layers if isinstance(each, nn.Dropout)] == [0.1, 0.3, 0.3]


def test_inputs_are_standardised_by_saved_statistics():
    head = SensingHead(4, 2, HeadConfig(width=4, standardise_input=True)).eval()
    features = torch.randn(50, 4) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + 3
    head.set_input(features)
    found = head.inputs(features)
    torch.testing.assert_close(found.mean(0), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.std(0, correction=0), torch.tensor([1.0, 1, 1, 0]), atol=1e-3, rtol=0)
    assert {"input_mean", "input_std"} <= set(head.state_dict())
    assert "input_mean" not in SensingHead(4, 2, HeadConfig(width=4)).state_dict()


def test_the_two_paths_are_mixed_around_the_constant():
    head = SensingHead(4, 2, HeadConfig(width=4, depth=1, skip=True)).eval()
    head.base.copy_(torch.tensor([1.0, 2.0]))
    head.mix.copy_(torch.tensor([[0.5, 0.0], [0.25, 2.0]]))
    x = torch.randn(3, 4)
    wanted = head.base + head.mix[0] * head.linear(x) + head.mix[1] * head.layers(x)
    torch.testing.assert_close(head(x), wanted)


# --- predictions given pins, intervals --------------------------------------------------------------------------------


def calibrated(kind="regression", m=3, rows=400, seed=0):
    """A head with correlated residuals and fitted intervals."""
    torch.manual_seed(seed)
    head = SensingHead(6, m, HeadConfig(kind=kind, width=8, depth=1)).eval()
    with torch.no_grad():
        raw = head(torch.randn(rows, 6))
        shared = torch.randn(rows, 1)
        z = head.belief(raw).mu + 0.5 * shared + 0.3 * torch.randn(rows, m)
        targets = torch.special.ndtr(z)
    head.calibrate(raw, raw, targets, targets)
    return head, raw, targets


@pytest.mark.parametrize("kind", ["regression", "binned", "gaussian"])
def test_pins_are_exact_and_no_pins_are_plain(kind):
    head, raw, _ = calibrated(kind)
    plain = head.predict(raw)
    assert torch.equal(plain.profile_BM, head.profile(raw))
    free = torch.full((len(raw), 3), NAN)
    bare = head.predict(raw, free)
    assert torch.equal(bare.profile_BM, plain.profile_BM)
    torch.testing.assert_close(bare.low_BM, plain.low_BM, atol=1e-5, rtol=0)
    pins = free.clone()
    pins[::2, 1] = 0.123456
    found = head.predict(raw, pins)
    for values in (found.profile_BM, found.low_BM, found.high_BM):
        assert (values[::2, 1] == 0.123456).all()
    assert torch.equal(found.profile_BM[1::2], plain.profile_BM[1::2])  # rows without pins
    everything = torch.rand(len(raw), 3)
    assert torch.equal(head.predict(raw, everything).profile_BM, everything)
    alone = head.predict(raw[:1], pins[:1])
    torch.testing.assert_close(found.profile_BM[:1], alone.profile_BM, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.high_BM[:1], alone.high_BM, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["regression", "binned"])
def test_a_pin_moves_what_correlates_with_it_and_makes_it_surer(kind):
    head, raw, targets = calibrated(kind)
    assert head.residual_cov[0, 1] > 0.1
    pins = torch.full((len(raw), 3), NAN)
    pins[:, 0] = targets[:, 0]
    plain, given = head.predict(raw), head.predict(raw, pins)
    moved = (given.profile_BM - plain.profile_BM)[:, 1]
    assert (moved[targets[:, 0] > plain.profile_BM[:, 0] + 0.15] > 0).all()
    assert (given.profile_BM - targets)[:, 1:].square().mean() < 0.7 * (plain.profile_BM - targets)[
        :, 1:
    ].square().mean()
    assert (given.high_BM - given.low_BM)[:, 1].mean() < 0.9 * (plain.high_BM - plain.low_BM)[:, 1].mean()


def test_a_gaussian_head_that_states_twice_the_spread_and_no_correlation_is_put_right():
    rows, sd, rho = 20_000, 0.7, 0.8
    draw = torch.Generator().manual_seed(0)
    mu = torch.randn(rows, 2, generator=draw) / 2
    shared = torch.randn(rows, 1, generator=draw)
    z = mu + sd * (rho**0.5 * shared + (1 - rho) ** 0.5 * torch.randn(rows, 2, generator=draw))
    entry = math.log(math.expm1(2 * sd - FLOOR))  # softplus and the floor make it 2 sd
    raw = torch.cat([mu, torch.tensor([entry, 0.0, entry]).expand(rows, -1)], 1)
    head = SensingHead(4, 2, HeadConfig(kind="gaussian", width=4)).eval()
    assert head.belief(raw).sigma[0].tolist() == pytest.approx([2 * sd] * 2)
    targets = torch.special.ndtr(z)
    head.calibrate(raw, raw, targets, targets)
    belief, var = head.belief(raw), sd**2
    assert belief.cov[0].flatten().tolist() == pytest.approx([var, rho * var, rho * var, var], abs=0.02)
    assert torch.equal(belief.mu, mu)
    # the closed forms: the mean of Phi(z), and the same of z_2 given z_1
    torch.testing.assert_close(head.profile(raw), torch.special.ndtr(mu / (1 + var) ** 0.5), atol=0.005, rtol=0)
    pins = torch.stack([targets[:, 0], torch.full((rows,), NAN)], 1)
    given = mu[:, 1] + rho * (z[:, 0].clamp(-2.326, 2.326) - mu[:, 0])
    wanted = torch.special.ndtr(given / (1 + var * (1 - rho**2)) ** 0.5)
    found = head.predict(raw, pins)
    torch.testing.assert_close(found.profile_BM[:, 1], wanted, atol=0.02, rtol=0)
    inside = ((targets >= found.low_BM) & (targets <= found.high_BM))[:, 1].float().mean()
    assert inside.item() == pytest.approx(0.8, abs=0.02)


def test_intervals_are_nested_and_levels_are_named():
    head, raw, targets = calibrated()
    ends = [head.predict(raw, level=level) for level in (0.5, 0.8, 0.9, 0.95)]
    for level, each in zip((0.5, 0.8, 0.9, 0.95), ends, strict=True):
        inside = ((targets >= each.low_BM) & (targets <= each.high_BM)).float().mean(0)
        assert inside.tolist() == pytest.approx([level] * 3, abs=0.02)
    assert all((one.low_BM >= two.low_BM).all() for one, two in pairwise(ends))
    with pytest.raises(InputError, match=r"level must be one of 0\.5, 0\.8, 0\.9, 0\.95, found 0\.7"):
        head.predict(raw, level=0.7)


def test_before_it_is_calibrated_a_head_gives_no_interval():
    head = SensingHead(6, 2, HeadConfig(width=8)).eval()
    found = head.predict(head(torch.randn(3, 6)), torch.tensor([[0.2, NAN]] * 3))
    assert found.low_BM is None and found.high_BM is None and (found.profile_BM[:, 0] == 0.2).all()


def test_too_few_held_out_targets_give_the_whole_scale():
    head = SensingHead(6, 2, HeadConfig(width=8, depth=1)).eval()
    with torch.no_grad():
        raw = head(torch.randn(6, 6))
    targets = 0.4 + 0.2 * torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    targets[:, 1] = NAN
    head.calibrate(raw, raw, targets, targets)
    found = head.predict(raw, level=0.9)
    assert (found.low_BM == 0).all() and (found.high_BM == 1).all()
    assert torch.isfinite(head.conformal).all() and (head.predict(raw, level=0.8).low_BM[:, 0] > 0).all()
