"""Training: settings, losses, the module that trains, and the loop every method shares."""

from paretune.training.config import TrainConfig, resolve
from paretune.training.loop import DivergedError, Item, Journal, Learner, run
from paretune.training.module import AdapterModule, Outputs, TrainModule, add_adapter, train_on

__all__ = [
    "AdapterModule",
    "DivergedError",
    "Item",
    "Journal",
    "Learner",
    "Outputs",
    "TrainConfig",
    "TrainModule",
    "add_adapter",
    "resolve",
    "run",
    "train_on",
]
