"""Steering by the user's own values or weights in the prompt."""

from paretune.methods.registry import register
from paretune.methods.steer.method import METHOD

register(METHOD)
