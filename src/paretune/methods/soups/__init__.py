"""Rewarded Soups: an adapter for each objective, interpolated."""

from paretune.methods.registry import register
from paretune.methods.soups.method import METHOD

register(METHOD)
