"""paretune: post-training for language models that must serve several objectives at once.

The verbs of the command line are functions here; nothing heavy is imported before the first of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paretune.data import read_rows as read_rows
    from paretune.data import write_rows as write_rows
    from paretune.errors import InputError as InputError
    from paretune.evaluation import evaluate as evaluate
    from paretune.harness import benchmark as benchmark
    from paretune.methods import train as train
    from paretune.methods.improve import improve as improve
    from paretune.pareto import front as front
    from paretune.policy import generate as generate
    from paretune.policy import load_policy as load_policy
    from paretune.policy import sample as sample
    from paretune.policy import sense as sense
    from paretune.profile import Objective as Objective
    from paretune.profile import Scale as Scale
    from paretune.reward_model import load_reward_model as load_reward_model
    from paretune.reward_model import train_reward_model as train_reward_model
    from paretune.rewards import parse_objective as parse_objective
    from paretune.rewards import score as score
    from paretune.tracking import compare_runs as compare_runs
    from paretune.tracking import find_runs as find_runs

_HOMES = {
    "InputError": "paretune.errors",
    "Objective": "paretune.profile",
    "Scale": "paretune.profile",
    "benchmark": "paretune.harness",
    "compare_runs": "paretune.tracking",
    "evaluate": "paretune.evaluation",
    "find_runs": "paretune.tracking",
    "front": "paretune.pareto",
    "generate": "paretune.policy",
    "improve": "paretune.methods.improve",
    "load_policy": "paretune.policy",
    "load_reward_model": "paretune.reward_model",
    "parse_objective": "paretune.rewards",
    "read_rows": "paretune.data",
    "sample": "paretune.policy",
    "score": "paretune.rewards",
    "sense": "paretune.policy",
    "train": "paretune.methods",
    "train_reward_model": "paretune.reward_model",
    "write_rows": "paretune.data",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name from its room when it is first asked for."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'paretune' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
