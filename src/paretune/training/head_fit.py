"""Fitting the sensing head alone, on read-out features of a fixed backbone: warm-up before, refit after joint training.

It costs one prefill of the prompts; the epochs over the features are nearly free. The weights kept are those of the
epoch with the lowest validation error, so a head that only memorises is not kept.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from paretune.policy.head import SensingHead


def fit_head(
    head: SensingHead,
    features_NH: Tensor,
    targets_NM: Tensor,
    validation: tuple[Tensor, Tensor] | None,
    *,
    epochs: int,
    lr: float,
    seed: int,
    standardise: bool,
    weight_decay: float = 0.01,
    batch_size: int = 64,
) -> float:
    """Train `head` in place; returns the best validation loss (training loss without validation rows).

    Missing targets are NaN and masked. The order of rows is drawn from `seed`.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    optimizer = torch.optim.AdamW(head.parameters(), lr=lr, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    checked = validation if validation is not None and len(validation[0]) else (features_NH, targets_NM)

    @torch.no_grad()
    def measure() -> float:
        head.eval()
        return float(head.loss(head(checked[0]), checked[1], standardise=standardise))

    best, kept = measure(), copy.deepcopy(head.state_dict())
    for _ in range(epochs):
        head.train()
        for index in torch.split(torch.randperm(len(features_NH), generator=generator), batch_size):
            optimizer.zero_grad()
            loss = head.loss(head(features_NH[index]), targets_NM[index], standardise=standardise)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
        now = measure()
        if now < best:
            best, kept = now, copy.deepcopy(head.state_dict())
    head.load_state_dict(kept)
    head.eval()
    return best
