"""The losses, worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from paretune.training.losses import contrast, dpo


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_dpo_by_hand():
    found = dpo(numbers(-10, -5), numbers(-12, -4), numbers(-11, -5), numbers(-11, -5), beta=0.5)
    # margins: (2 - 0) and (-1 - 0)
    assert found.tolist() == pytest.approx([math.log1p(math.exp(-1.0)), math.log1p(math.exp(0.5))])


def test_dpo_of_the_reference_itself_is_log_two():
    logp = numbers(-3, -200)
    assert dpo(logp, logp - 7, logp, logp - 7, beta=0.1).tolist() == pytest.approx([math.log(2)] * 2)


def test_dpo_without_a_reference():
    zero = numbers(0)
    assert dpo(numbers(-1), numbers(-3), zero, zero, beta=0.1).item() == pytest.approx(math.log1p(math.exp(-0.2)))


def test_contrast_by_hand():
    assert contrast(numbers(-4), numbers(-9), beta=0.2).item() == pytest.approx(math.log1p(math.exp(-1.0)))


def test_large_margins_neither_overflow_nor_vanish():
    zero = numbers(0)
    assert dpo(numbers(-1e6), zero, zero, zero, beta=1.0).item() == pytest.approx(1e6)
    assert dpo(zero, numbers(-1e6), zero, zero, beta=1.0).item() == 0.0
