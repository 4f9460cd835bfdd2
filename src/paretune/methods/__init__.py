"""Methods: ways to train a policy, each a small package that registers itself."""

import paretune.methods.cpo
import paretune.methods.dpo
import paretune.methods.grpo
import paretune.methods.mod
import paretune.methods.modpo
import paretune.methods.pro
import paretune.methods.ric
import paretune.methods.sft
import paretune.methods.sga
import paretune.methods.soups
import paretune.methods.steer  # noqa: F401  (importing registers them)
from paretune.methods.base import Method
from paretune.methods.registry import METHODS, get_method, register
from paretune.methods.train import TrainResult, default_config, train

__all__ = ["METHODS", "Method", "TrainResult", "default_config", "get_method", "register", "train"]
