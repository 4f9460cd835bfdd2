"""Multi-objective DPO: an adapter for each vector of preference weights."""

from paretune.methods.modpo.method import METHOD
from paretune.methods.registry import register

register(METHOD)
