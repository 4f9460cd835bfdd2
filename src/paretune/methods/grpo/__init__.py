"""GRPO on the objectives' rewards of answers that the policy samples while it trains, by TRL's trainer."""

from paretune.methods.grpo.method import METHOD
from paretune.methods.registry import register

register(METHOD)
