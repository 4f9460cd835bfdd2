"""AdamW with float32 master weights, so that adapters may compute in bfloat16 and still learn in float32.

An adapter held in float32 beside a bfloat16 backbone casts every activation twice; held in bfloat16 a step takes about
seven tenths of the time on a CPU (`make bench`), but steps smaller than 1/256 of a weight would be lost. The masters
keep them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paretune.training.config import TrainConfig
from paretune.training.module import AdapterModule


class MasterAdamW:
    """AdamW whose state and weights are float32 (float64 stays float64) whatever the parameters are."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        clip_apart: bool = False,
    ) -> None:
        self.clip_apart = clip_apart
        self.pairs: list[tuple[nn.Parameter, Tensor]] = []
        ready = []
        for group in groups:
            masters = []
            for parameter in group["params"]:
                low = parameter.dtype in (torch.bfloat16, torch.float16)
                master = parameter.detach().float().clone() if low else parameter
                self.pairs.append((parameter, master))
                masters.append(master)
            ready.append({**group, "params": masters, "base_lr": group["lr"]})
        self.inner = torch.optim.AdamW(ready, betas=betas, weight_decay=weight_decay)

    def set_factor(self, factor: float) -> None:
        """Scale every group's learning rate by the schedule's factor."""
        for group in self.inner.param_groups:
            group["lr"] = group["base_lr"] * factor

    def step(self, clip: float) -> float:
        """Clip, step unless the gradient norm is not finite, clear the gradients; returns the norm before clipping."""
        for parameter, master in self.pairs:
            if master is not parameter and parameter.grad is not None:
                master.grad = parameter.grad.to(master.dtype)
        masters = [group["params"] for group in self.inner.param_groups]
        parts = masters if self.clip_apart else [[each for group in masters for each in group]]
        norm = math.hypot(*(float(nn.utils.clip_grad_norm_(part, clip)) for part in parts))
        if math.isfinite(norm):
            self.inner.step()
            with torch.no_grad():
                for parameter, master in self.pairs:
                    if master is not parameter:
                        parameter.copy_(master)
        for parameter, master in self.pairs:
            parameter.grad = master.grad = None
        return norm

    def state(self) -> dict[str, Tensor]:
        """Masters, moments and step counts, by the parameter's place among `pairs`: what the next step depends on.

        A parameter that never had a gradient has none.
        """
        out: dict[str, Tensor] = {}
        for at, (parameter, master) in enumerate(self.pairs):
            if master is not parameter:
                out[f"{at}.master"] = master
            out |= {f"{at}.{key}": value for key, value in self.inner.state.get(master, {}).items()}
        return out

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave, over the same parameters."""
        self.inner.state.clear()
        for name, value in state.items():
            at, _, key = name.partition(".")
            master = self.pairs[int(at)][1]
            if key == "master":
                master.copy_(value)
            else:  # torch counts steps on the CPU
                self.inner.state[master][key] = value.clone() if key == "step" else value.to(master.device, copy=True)


def optimizer_for(module: AdapterModule, config: TrainConfig) -> MasterAdamW:
    """AdamW over the adapter and the head, each with its learning rate."""
    adapter = [each for each in module.peft.parameters() if each.requires_grad]
    groups: list[dict[str, Any]] = [{"params": adapter, "lr": config.lr}]
    if module.head is not None:
        groups.append({"params": list(module.head.parameters()), "lr": config.lr_head or config.lr})
    # a detached head must not move the adapter, not even by a share of the norm that is clipped
    apart = module.head is not None and module.backbone_grad_scale == 0
    return MasterAdamW(groups, betas=config.betas, weight_decay=config.weight_decay, clip_apart=apart)
