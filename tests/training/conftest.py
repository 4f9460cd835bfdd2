"""Fixtures of the training room: a module in float64 over a tiny model, with an adapter that is far from zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.head import HeadConfig, SensingHead
from paretune.training.config import TrainConfig
from paretune.training.module import TrainModule, add_adapter


@pytest.fixture
def make_module() -> Callable[..., TrainModule]:
    """Builds a module; `head=False` leaves the head out."""

    def make(
        model: Path, *, head: bool = True, scale: float = 1.0, dtype: str = "float64", **settings: Any
    ) -> TrainModule:
        causal, _ = load_backbone(str(model), dtype=dtype)
        peft = add_adapter(causal, TrainConfig(**{"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0, **settings}))
        torch.manual_seed(0)
        with torch.no_grad():
            for name, each in peft.named_parameters():
                if "lora_B" in name:
                    each.normal_(std=0.1)
        sensing = SensingHead(hidden_size(causal), 2, HeadConfig(width=8, depth=1, dropout=0.0)) if head else None
        return TrainModule(peft, sensing, backbone_grad_scale=scale)

    return make
