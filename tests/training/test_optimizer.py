"""The optimizer: plain AdamW for full precision, float32 masters under bfloat16, and no step on a bad gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from paretune.training import TrainConfig
from paretune.training.optimizer import MasterAdamW, optimizer_for


def adam(parameter, lr=1e-3, **options):
    return MasterAdamW([{"params": [parameter], "lr": lr}], **{"betas": (0.9, 0.99), "weight_decay": 0.0, **options})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_torchs_adamw(dtype):
    one, two = (nn.Parameter(torch.linspace(-1, 1, 7, dtype=dtype)) for _ in range(2))
    ours = adam(one, lr=0.1, weight_decay=0.3)
    plain = torch.optim.AdamW([two], lr=0.1, betas=(0.9, 0.99), weight_decay=0.3)
    for step in range(5):
        for each in (one, two):
            each.grad = torch.sin(each.detach() * (step + 1))
        norm = torch.nn.utils.clip_grad_norm_([two], 0.5)
        plain.step()
        assert ours.step(0.5) == pytest.approx(float(norm))
        assert one.grad is None
    assert torch.equal(one, two)


def test_steps_too_small_for_bfloat16_are_not_lost():
    weight = nn.Parameter(torch.full((4,), 1.0, dtype=torch.bfloat16))
    optimizer = adam(weight, lr=1e-4)  # the spacing of bfloat16 below 1 is 1/256
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step(1e9)
    # a hundred steps of 1e-4 each: 0.99, to the spacing
    assert weight.dtype == torch.bfloat16
    assert weight.float().tolist() == pytest.approx([0.99] * 4, abs=1 / 512)


def test_the_clip_bounds_the_norm_over_all_groups():
    one, two = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = MasterAdamW(
        [{"params": [one], "lr": 1.0}, {"params": [two], "lr": 1.0}], betas=(0.0, 0.0), weight_decay=0.0
    )
    one.grad, two.grad = torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.bfloat16)
    assert optimizer.step(1.0) == pytest.approx(5.0)


def test_a_detached_heads_gradient_is_clipped_apart():
    def moved(head_gradient, apart):
        one, two = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        groups = [{"params": [one], "lr": 1.0}, {"params": [two], "lr": 1.0}]
        optimizer = MasterAdamW(groups, betas=(0.0, 0.0), weight_decay=0.0, clip_apart=apart)
        clipped = []
        optimizer.inner.step = lambda: clipped.extend([float(one.grad), float(two.grad)])
        one.grad, two.grad = torch.tensor([3.0]), torch.tensor([head_gradient])
        norm = optimizer.step(1.5)
        return norm, clipped

    norm, (adapter, head) = moved(400.0, apart=True)
    assert norm == pytest.approx(math.hypot(3.0, 400.0))
    assert (adapter, head) == pytest.approx((1.5, 1.5), rel=1e-5)
    assert moved(400.0, apart=False)[1] == pytest.approx([3 * 1.5 / norm, 400 * 1.5 / norm], rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_moves_nothing(bad, dtype):
    weight = nn.Parameter(torch.ones(3, dtype=dtype))
    optimizer = adam(weight)
    weight.grad = torch.tensor([0.1, bad, 0.1], dtype=dtype)
    assert not math.isfinite(optimizer.step(1.0))
    assert weight.tolist() == [1.0] * 3 and weight.grad is None
    weight.grad = torch.ones_like(weight)
    optimizer.step(1.0)  # and its state is not spoilt
    assert torch.isfinite(weight).all()


def test_the_factor_scales_each_groups_own_rate():
    one, two = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = MasterAdamW(
        [{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.4}], betas=(0.9, 0.9), weight_decay=0.0
    )
    for factor in (0.5, 0.25):
        optimizer.set_factor(factor)
        assert [group["lr"] for group in optimizer.inner.param_groups] == [0.1 * factor, 0.4 * factor]


def test_adapter_and_head_are_all_that_is_stepped(tiny_llama, make_module):
    module = make_module(tiny_llama, dtype="bfloat16")
    stepped = {id(parameter) for parameter, _ in optimizer_for(module, TrainConfig()).pairs}
    assert stepped == {id(each) for each in module.parameters() if each.requires_grad}
    assert all(each.dtype == torch.bfloat16 for name, each in module.peft.named_parameters() if "lora" in name)
    assert all(each.dtype == torch.float32 for each in module.head.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_it_remembers_goes_from_one_to_another(dtype):
    def steps(optimizer, parameters, which):
        for step in which:
            for at, each in enumerate(parameters[:2]):  # the third never has a gradient
                each.grad = torch.sin(each.detach().float() * (step + at + 1)).to(dtype)
            optimizer.step(0.5)

    def fresh():
        parameters = [nn.Parameter(torch.linspace(-1, 1, 5).to(dtype)) for _ in range(3)]
        groups = [{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:], "lr": 1e-3}]
        return MasterAdamW(groups, betas=(0.9, 0.99), weight_decay=0.1), parameters

    (whole, wanted), (half, before), (other, after) = fresh(), fresh(), fresh()
    steps(whole, wanted, range(6))
    steps(half, before, range(3))
    saved = {name: each.clone() for name, each in half.state().items()}
    moments = {f"{at}.{key}" for at in (0, 1) for key in ("exp_avg", "exp_avg_sq", "step")}
    assert saved.keys() == moments | ({"0.master", "1.master", "2.master"} if dtype == torch.bfloat16 else set())
    with torch.no_grad():
        for one, two in zip(after, before, strict=True):
            one.copy_(two)
    other.restore(saved)
    steps(other, after, range(3, 6))
    assert all(torch.equal(one, two) for one, two in zip(after, wanted, strict=True))
    steps(half, before, range(3, 6))  # and what was given away is a copy
    assert all(torch.equal(each, saved[name]) == (name == "2.master") for name, each in half.state().items())
