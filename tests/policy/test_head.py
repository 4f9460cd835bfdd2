"""The sensing head: its shape is the paper's, its loss is worked by hand, and it is float32 over any backbone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from paretune.errors import InputError
from paretune.policy.head import HeadConfig, SensingHead

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
    wanted = torch.sigmoid(nn.functional.layer_norm(x, (4,)) @ linear.weight.T + linear.bias)
    torch.testing.assert_close(head(x), wanted)


def test_mean_squared_error_with_missing_targets():
    head = SensingHead(4, 2, HeadConfig(width=4))
    predicted = torch.tensor([[0.5, 0.2], [0.9, 0.4]])
    target = torch.tensor([[0.1, NAN], [0.6, 0.5]])
    # (0.4^2 + 0.3^2 + 0.1^2) / 3
    assert head.loss(predicted, target, standardise=False).item() == pytest.approx(0.26 / 3)


def test_standardised_error_is_in_units_of_the_targets_standard_deviation():
    head = SensingHead(4, 2, HeadConfig(width=4))
    head.set_statistics(torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.05]), start_at_mean=False)
    predicted = torch.tensor([[0.5, 0.2], [0.9, 0.4]])
    target = torch.tensor([[0.1, NAN], [0.6, 0.5]])
    # (0.4/0.2)^2 + (0.3/0.2)^2 + (0.1/0.05)^2 = 4 + 2.25 + 4
    assert head.loss(predicted, target, standardise=True).item() == pytest.approx(10.25 / 3)
    assert head.loss(predicted, target, standardise=False).item() == pytest.approx(0.26 / 3)


def test_missing_targets_send_no_gradient_and_no_nan():
    head = SensingHead(4, 2, HeadConfig(width=4))
    predicted = torch.tensor([[0.5, 0.2], [0.9, 0.4]], requires_grad=True)
    head.loss(predicted, torch.tensor([[NAN, 0.2], [NAN, 0.1]]), standardise=True).backward()
    assert predicted.grad[:, 0].tolist() == [0, 0]
    assert predicted.grad[1, 1] > 0
    predicted.grad = None
    head.loss(predicted, torch.full((2, 2), NAN), standardise=False).backward()
    assert predicted.grad.abs().sum() == 0


def test_a_constant_target_has_a_floor_under_its_standard_deviation():
    head = SensingHead(4, 1, HeadConfig(width=4))
    head.set_statistics(torch.tensor([0.7]), torch.tensor([0.0]), start_at_mean=True)
    assert math.isfinite(head.loss(torch.tensor([[0.6]]), torch.tensor([[0.7]]), standardise=True).item())


def test_the_untrained_head_starts_near_the_mean():
    head = SensingHead(16, 3, HeadConfig(width=8, depth=1)).eval()
    mean = torch.tensor([0.1, 0.5, 0.97])
    head.set_statistics(mean, torch.ones(3), start_at_mean=True)
    predicted = head(torch.randn(50, 16))
    torch.testing.assert_close(predicted.mean(0), mean, atol=0.03, rtol=0)


def test_float32_whatever_the_backbone_is():
    head = SensingHead(8, 2, HeadConfig(width=4)).eval()
    x = torch.randn(3, 8).bfloat16()
    found = head(x)
    assert found.dtype == torch.float32 and head.layers[-1].weight.dtype == torch.float32
    torch.testing.assert_close(found, head(x.float()), rtol=0, atol=0)
    assert head(x.double()).dtype == torch.float32


def test_statistics_are_saved_with_the_weights():
    head = SensingHead(8, 2, HeadConfig(width=4))
    head.set_statistics(torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.4]), start_at_mean=False)
    assert head.state_dict()["target_mean"].tolist() == pytest.approx([0.1, 0.2])
    assert head.state_dict()["target_std"].tolist() == pytest.approx([0.3, 0.4])


def test_config_goes_through_json_and_refuses_the_unknown():
    config = HeadConfig(width=7, depth=2, dropout=0.0, input_norm=True)
    assert HeadConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match="Did you mean 'width'"):
        HeadConfig.from_dict({"widht": 3})
    for bad in ({"width": 0}, {"depth": -1}, {"dropout": 1.0}, {"dropout": -0.1}):
        with pytest.raises(InputError, match="head:"):
            HeadConfig(**bad)
