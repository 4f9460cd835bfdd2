"""Controllable preference optimisation: control tokens, likelihood first and then DPO."""

from paretune.methods.cpo.method import METHOD
from paretune.methods.registry import register

register(METHOD)
