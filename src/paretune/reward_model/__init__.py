"""Reward models of our own: a backbone with LoRA and one output an objective, read at the answer's end.

`train_reward_model` makes a folder from rows; `trained:FOLDER#objective` (in `reward.py`, which the registry of rewards
imports by name) measures answers by it. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paretune.reward_model.config import RewardConfig as RewardConfig
    from paretune.reward_model.folder import load_reward_model as load_reward_model
    from paretune.reward_model.model import RewardModel as RewardModel
    from paretune.reward_model.train import RewardTrainResult as RewardTrainResult
    from paretune.reward_model.train import train_reward_model as train_reward_model

_HOMES = {
    "RewardConfig": "config",
    "RewardModel": "model",
    "RewardTrainResult": "train",
    "load_reward_model": "folder",
    "train_reward_model": "train",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first asked for."""
    if name in _HOMES:
        return getattr(import_module(f"paretune.reward_model.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'paretune.reward_model' has no attribute '{name}'")
