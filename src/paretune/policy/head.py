"""The sensing head: reads the prompt's last hidden state and predicts the preference profile.

The architecture is the paper's (Wang et al., "Self-Guided Alignment", ACL 2026): dropout, three hidden layers of width
1024 with ReLU, a linear layer to the m objectives and a sigmoid. The head is float32 whatever the backbone is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paretune.errors import InputError, did_you_mean


@dataclass(frozen=True)
class HeadConfig:
    """Shape of the head. `input_norm` puts a LayerNorm before the first layer (off in the paper)."""

    width: int = 1024
    depth: int = 3
    dropout: float = 0.1
    input_norm: bool = False

    def __post_init__(self) -> None:
        if self.width < 1 or self.depth < 0 or not 0 <= self.dropout < 1:
            raise InputError("head: width must be at least 1, depth at least 0, dropout in [0, 1)")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HeadConfig:
        """Read the JSON form back; unknown keys are errors."""
        known = set(cls.__dataclass_fields__)
        for key in data:
            if key not in known:
                raise InputError(f"head: unknown key '{key}'.{did_you_mean(key, known)}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


class SensingHead(nn.Module):
    """Hidden states [B, H] of the read-out token to profiles [B, M] in (0, 1), float32.

    `target_mean` and `target_std` [M] are the training targets' statistics, saved with the weights: the loss is
    measured in units of the standard deviation when targets are standardised, and the mean is the condition `mean`.
    """

    target_mean: Tensor
    target_std: Tensor

    def __init__(self, hidden_size: int, objectives: int, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        layers: list[nn.Module] = [nn.LayerNorm(hidden_size)] if config.input_norm else []
        layers.append(nn.Dropout(config.dropout))
        width = hidden_size
        for _ in range(config.depth):
            layers += [nn.Linear(width, config.width), nn.ReLU()]
            width = config.width
        layers.append(nn.Linear(width, objectives))
        self.layers = nn.Sequential(*layers)
        self.register_buffer("target_mean", torch.full((objectives,), 0.5))
        self.register_buffer("target_std", torch.ones(objectives))

    def forward(self, hidden_BH: Tensor) -> Tensor:
        """Predicted profiles [B, M]."""
        return torch.sigmoid(self.layers(hidden_BH.float()))

    def set_statistics(self, mean_M: Tensor, std_M: Tensor, *, start_at_mean: bool) -> None:
        """Store the targets' mean and standard deviation; optionally let the untrained head predict the mean."""
        self.target_mean.copy_(mean_M)
        self.target_std.copy_(std_M.clamp_min(1e-3))
        if start_at_mean:
            last = self.layers[-1]
            assert isinstance(last, nn.Linear)
            with torch.no_grad():
                last.bias.copy_(torch.logit(mean_M.clamp(0.01, 0.99)))
                last.weight.mul_(0.1)

    def loss(self, predicted_BM: Tensor, target_BM: Tensor, *, standardise: bool) -> Tensor:
        """Mean squared error over the present targets; NaN marks a missing one and is masked.

        The paper's MSE when `standardise` is off; in units of the targets' standard deviation when it is on.
        """
        present_BM = ~torch.isnan(target_BM)
        error_BM = predicted_BM - torch.where(present_BM, target_BM, predicted_BM.detach())
        if standardise:
            error_BM = error_BM / self.target_std
        return (error_BM.square() * present_BM).sum() / present_BM.sum().clamp_min(1)
