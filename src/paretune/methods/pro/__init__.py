"""Preference orchestrator: weights sensed from the prompt, which guide the answer."""

from paretune.methods.pro.method import METHOD
from paretune.methods.registry import register

register(METHOD)
