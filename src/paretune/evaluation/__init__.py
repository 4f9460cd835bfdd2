"""Evaluation: the deciding ablation, head quality, win rates, control, the front, and the report that tells them."""

from __future__ import annotations

from paretune.evaluation.conditions import CONDITIONS
from paretune.evaluation.evaluate import evaluate
from paretune.evaluation.output import describe

__all__ = ["CONDITIONS", "describe", "evaluate"]
