"""LoRA layers that compute with fewer passes over memory, and are PEFT's own in everything else.

PEFT computes `base(x) + lora_B(lora_A(dropout(x))) * scaling` one operation at a time: each is a pass over a tensor as
large as the layer's output, and autograd keeps a dropped copy of the input for every layer. Here the low-rank product
is added inside the matrix product, its scaling touches rank-sized tensors only, and what is kept at full size is the
input itself, which query, key and value have in common. The numbers are PEFT's up to rounding.

`use_fused_lora` changes the class of PEFT's plain LoRA layers in place. Saving, loading, merging and disabling the
adapter stay PEFT's, and whatever is not plain (variants, several adapters, mixed precision, quantised bases, hooks on
the inner layers) still takes PEFT's own forward.

Shapes: N tokens, I and O width of input and output, R rank.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from peft.tuners.lora.layer import Linear as PeftLinear
from torch import Tensor, nn

SPARSE_DROPOUT = 0.2  # up to this rate the dropped positions themselves are drawn, above it a mask


def use_fused_lora(model: nn.Module) -> int:
    """Let every plain LoRA layer of a PEFT model compute fused; returns how many there are."""
    found = [module for module in model.modules() if type(module) is PeftLinear]
    for module in found:
        module.__class__ = FusedLoraLinear
    return len(found)


class FusedLoraLinear(PeftLinear):  # type: ignore[misc]
    """PEFT's LoRA linear layer with a fused forward where the layer is plain."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What PEFT's forward computes."""
        plain = None if args or any(value is not None for value in kwargs.values()) else self._plain(x)
        if plain is None:
            return cast(Tensor, super().forward(x, *args, **kwargs))
        name, rate = plain
        base = self.get_base_layer()
        weights = (base.weight, base.bias, self.lora_A[name].weight, self.lora_B[name].weight)
        return cast(Tensor, _LoraProduct.apply(x, *weights, float(self.scaling[name]), rate))  # type: ignore[no-untyped-call]

    def _plain(self, x: Tensor) -> tuple[str, float] | None:
        """(the active adapter, its dropout rate now) where the fused product applies."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return None
        name = self.active_adapters[0]
        if name not in self.lora_A or name in self.lora_variant or torch.is_autocast_enabled(x.device.type):
            return None
        base, dropout = self.get_base_layer(), self.lora_dropout[name]
        linear = (base, self.lora_A[name], self.lora_B[name])
        if any(type(each) is not nn.Linear or each.weight.dtype != x.dtype or _hooked(each) for each in linear):
            return None
        # the fused product has no gradient for the base's weights
        if self.lora_B[name].bias is not None or base.weight.requires_grad or _hooked(dropout):
            return None
        if not isinstance(dropout, (nn.Identity, nn.Dropout)):
            return None
        return name, dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0


def _hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


class _LoraProduct(torch.autograd.Function):
    """x W^T + bias + scale * (drop(x) A^T) B^T with gradients for x, A and B."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scale: float,
        rate: float,
    ) -> Tensor:
        x_NI = x.reshape(-1, x.shape[-1])
        dropped = sample_positions(x_NI, rate) if rate else None
        scale = scale / (1 - rate)
        low_NR = _without(x_NI, dropped) @ a_RI.T
        out_NO = nn.functional.linear(x_NI, weight_OI, bias_O)
        out_NO.addmm_(low_NR, b_OR.T, alpha=scale)
        ctx.save_for_backward(x, weight_OI, a_RI, b_OR, low_NR, dropped)
        ctx.scale = scale
        return out_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_OI, a_RI, b_OR, low_NR, dropped = ctx.saved_tensors
        slope_NO = grads[0].reshape(-1, grads[0].shape[-1])
        x_NI = x.reshape(-1, x.shape[-1])
        slope_NR = (slope_NO @ b_OR).mul_(ctx.scale)
        slope_x = slope_a = slope_b = None
        if ctx.needs_input_grad[0]:
            slope_NI = slope_NO @ weight_OI
            if dropped is None:
                slope_NI.addmm_(slope_NR, a_RI)
            else:
                slope_NI.add_(_clear(slope_NR @ a_RI, dropped))
            slope_x = slope_NI.view_as(x)
        if ctx.needs_input_grad[3]:
            slope_a = slope_NR.T @ _without(x_NI, dropped)
        if ctx.needs_input_grad[4]:
            slope_b = (slope_NO.T @ low_NR).mul_(ctx.scale)
        return slope_x, None, None, slope_a, slope_b, None, None


def sample_positions(x: Tensor, rate: float) -> Tensor:
    """The positions of `x` that dropout clears, each with probability `rate`: flat indices, or a mask of bools.

    A CPU draws a random number an element far more slowly than it multiplies. The gaps between dropped positions are
    geometric, so a low rate needs few draws. On an accelerator a result of unknown size would wait for the device.
    """
    if x.device.type != "cpu" or rate > SPARSE_DROPOUT:
        return torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(rate)
    count = x.numel()
    draws = math.ceil(count * rate + 8 * math.sqrt(count * rate) + 8)
    parts, last = [], -1
    while last < count:
        # 1 + floor(log u / log(1 - rate)) with u uniform in (0, 1] is geometric
        gaps = torch.rand(draws, dtype=torch.float64).neg_().log1p_().div_(math.log1p(-rate)).long().add_(1)
        parts.append(gaps.cumsum_(0).add_(last))
        last = int(parts[-1][-1])
    index = torch.cat(parts) if len(parts) > 1 else parts[0]
    return index[: int(torch.searchsorted(index, count))]


def _clear(x: Tensor, dropped: Tensor) -> Tensor:
    """`x`, which nobody else holds, with the positions set to zero."""
    if dropped.dtype == torch.bool:
        return x.masked_fill_(dropped, 0)
    x.view(-1).index_fill_(0, dropped, 0)
    return x


def _without(x: Tensor, dropped: Tensor | None) -> Tensor:
    """`x` without the positions; itself where nothing is dropped."""
    return x if dropped is None else _clear(x.clone(memory_format=torch.contiguous_format), dropped)
