"""Online rounds: a policy answers, its answers are scored, and it is trained on the best of them, round by round.

One implementation for every method whose policies take a profile and whose training can go on; for `ric` it is the
online stage of the paper (Yang et al., "Rewards-in-Context", ICML 2024).
"""

from paretune.methods.improve.options import ImproveOptions
from paretune.methods.improve.verb import ImproveResult, improve

__all__ = ["ImproveOptions", "ImproveResult", "improve"]
