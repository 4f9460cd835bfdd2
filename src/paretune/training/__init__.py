"""Training: settings, losses, the module that trains, and the loop every method shares."""

from paretune.training.checkpoint import Checkpoints
from paretune.training.config import TrainConfig, resolve
from paretune.training.guards import DivergedError
from paretune.training.journal import Journal
from paretune.training.loop import Item, Learner, run
from paretune.training.module import AdapterModule, Outputs, TrainModule, add_adapter, reopen_adapter
from paretune.training.provenance import identity

__all__ = [
    "AdapterModule",
    "Checkpoints",
    "DivergedError",
    "Item",
    "Journal",
    "Learner",
    "Outputs",
    "TrainConfig",
    "TrainModule",
    "add_adapter",
    "identity",
    "reopen_adapter",
    "resolve",
    "run",
]
