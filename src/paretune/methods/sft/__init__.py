"""Supervised fine-tuning on the chosen completion: the plainest baseline."""

from paretune.methods.registry import register
from paretune.methods.sft.method import METHOD

register(METHOD)
