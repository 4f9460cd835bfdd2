"""Policies: the renderer, the sensing head, the generation engine, saving and loading, sampling from a base model."""

from paretune.policy.folder import load_policy, save_policy
from paretune.policy.policy import CONDITIONS, Generation, Policy, Sensed
from paretune.policy.renderer import STYLES, Renderer
from paretune.policy.sample import SampleResult, sample
from paretune.policy.verbs import generate, sense

__all__ = [
    "CONDITIONS",
    "STYLES",
    "Generation",
    "Policy",
    "Renderer",
    "SampleResult",
    "Sensed",
    "generate",
    "load_policy",
    "sample",
    "save_policy",
    "sense",
]
