"""Rewards in context: scored completions under their own z-scores, written into the prompt."""

from paretune.methods.registry import register
from paretune.methods.ric.method import METHOD

register(METHOD)
