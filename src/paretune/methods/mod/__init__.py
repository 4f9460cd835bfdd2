"""Multi-objective decoding: an adapter for each objective, whose next tokens are mixed."""

from paretune.methods.mod.method import METHOD, from_soups
from paretune.methods.registry import register

register(METHOD)

__all__ = ["METHOD", "from_soups"]
