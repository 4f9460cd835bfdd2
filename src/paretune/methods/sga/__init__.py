"""Self-Guided Alignment: one model senses the profile that fits a prompt and is guided by it."""

from paretune.methods.registry import register
from paretune.methods.sga.method import METHOD

register(METHOD)
