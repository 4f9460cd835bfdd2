"""Fused LoRA layers compute what PEFT's do, and leave everything else to PEFT."""

from __future__ import annotations

import copy
import math

import peft
import pytest
import torch
from torch import nn

from paretune.policy import lora
from paretune.policy.lora import FusedLoraLinear, sample_positions, use_fused_lora

IDS = torch.tensor([[5, 9, 11, 300, 42, 7], [17, 18, 19, 20, 21, 22]])


class Net(nn.Module):
    """One layer to adapt."""

    def __init__(self, bias):
        super().__init__()
        self.layer = nn.Linear(6, 10, bias=bias)

    def forward(self, x):
        return self.layer(x)


def pair(bias=True, dropout=0.0, dtype=torch.float64, **settings):
    """The same adapted net twice: by PEFT, and fused."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=3, lora_alpha=6, lora_dropout=dropout, target_modules=["layer"], **settings)
    plain = peft.get_peft_model(Net(bias).to(dtype), config, autocast_adapter_dtype=False)
    with torch.no_grad():
        plain.base_model.model.layer.lora_B["default"].weight.normal_()
    fused = copy.deepcopy(plain)
    use_fused_lora(fused)
    return plain, fused


def layer(net):
    return net.base_model.model.layer


def learn(net, x):
    """Output, and gradients of the input and of the adapter, of an uneven scalar."""
    x = x.clone().requires_grad_()
    out = net(x)
    (out.sin() * torch.arange(out.numel(), dtype=x.dtype).view_as(out)).sum().backward()
    adapter = layer(net)
    return [out.detach(), x.grad, adapter.lora_A["default"].weight.grad, adapter.lora_B["default"].weight.grad]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
def test_output_and_gradients_are_pefts(bias, shape):
    plain, fused = pair(bias)
    assert type(layer(fused)) is FusedLoraLinear and layer(fused)._plain(torch.zeros(shape, dtype=torch.float64))
    x = torch.randn(shape, dtype=torch.float64)
    for found, wanted in zip(learn(fused, x), learn(plain, x), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


def test_a_transposed_input_and_gradient_are_taken_as_they_lie():
    plain, fused = pair()
    x = torch.randn(6, 5, dtype=torch.float64)
    grads = []
    for net in (plain, fused):
        leaf = x.clone().requires_grad_()
        (net(leaf.T).T.contiguous().T.sin()).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_dropout_clears_the_adapters_input_and_nothing_else(rate, monkeypatch):
    _, fused = pair(dropout=rate)
    x, drawn = torch.randn(40, 6, dtype=torch.float64), []

    def remember(x, rate):
        drawn.append(sample_positions(x, rate))
        return drawn[-1]

    monkeypatch.setattr(lora, "sample_positions", remember)
    found = learn(fused.train(), x)
    (positions,) = drawn
    assert (positions.dtype == torch.bool) == (rate > lora.SPARSE_DROPOUT)
    flat = positions.flatten().nonzero()[:, 0] if positions.dtype == torch.bool else positions
    keep = torch.ones(x.numel(), dtype=torch.float64).index_fill_(0, flat, 0).view_as(x) / (1 - rate)
    own = layer(fused)
    inner = own.base_layer.weight, own.base_layer.bias, own.lora_A["default"].weight, own.lora_B["default"].weight

    class ByHand(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_model = nn.Module()
            self.base_model.model = nn.Module()
            self.base_model.model.layer = own

        def forward(self, x):
            weight, bias, a, b = inner
            return x @ weight.T + bias + (x * keep) @ a.T @ b.T * own.scaling["default"]

    fused.zero_grad()
    for one, two in zip(found, learn(ByHand(), x), strict=True):
        torch.testing.assert_close(one, two, atol=1e-12, rtol=1e-12)
    fused.eval()
    torch.testing.assert_close(fused(x), pair(dropout=rate)[0].eval()(x), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2, 0.4])
def test_positions_are_dropped_independently_at_the_rate(rate):
    torch.manual_seed(0)
    x, times = torch.zeros(50, 40), 200
    hits = torch.zeros(times, x.numel())
    for row in hits:
        positions = sample_positions(x, rate)
        row += (
            positions.flatten() if positions.dtype == torch.bool else torch.zeros_like(row).index_fill_(0, positions, 1)
        )
    deviation = math.sqrt(rate * (1 - rate))
    assert abs(hits.mean() - rate) < 4 * deviation / math.sqrt(hits.numel())
    # the first and the last position as often as any; neighbours no more often together than by chance
    assert (hits.mean(0) - rate).abs().max() < 5.5 * deviation / math.sqrt(times)
    both = (hits[:, 1:] * hits[:, :-1]).mean()
    assert abs(both - rate**2) < 5 * rate / math.sqrt(hits.numel())


def test_positions_go_on_when_the_first_draws_end_early(monkeypatch):
    monkeypatch.setattr(lora.math, "ceil", lambda value: 3)
    torch.manual_seed(0)
    index = sample_positions(torch.zeros(1000), 0.1)
    assert 60 < len(index) < 140 and index.max() < 1000 and (index.diff() > 0).all()


def test_what_is_not_plain_is_left_to_peft():
    x = torch.randn(4, 6, dtype=torch.float64)

    def same(change, **settings):
        plain, fused = pair(**settings)
        for net in (plain, fused):
            change(net)
        assert layer(fused)._plain(x) is None
        torch.testing.assert_close(fused(x), plain(x), atol=1e-12, rtol=1e-12)

    same(lambda net: layer(net).lora_A["default"].register_forward_hook(lambda module, args, out: out * 3))
    same(lambda net: net.merge_adapter())
    same(lambda net: net.base_model.disable_adapter_layers())
    same(lambda net: layer(net).base_layer.weight.requires_grad_(True))
    same(lambda net: (layer(net).lora_A.float(), layer(net).lora_B.float()))
    same(lambda net: None, use_dora=True)
    same(lambda net: None, lora_bias=True)

    def second(net):
        net.add_adapter("other", peft.LoraConfig(r=2, target_modules=["layer"], init_lora_weights=False))
        net.base_model.set_adapter(["default", "other"])

    _, fused = pair()
    second(fused)
    assert layer(fused)._plain(x) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(pair()[1])._plain(x) is None
