"""Rewarded Soups: one adapter for each objective, added up by a request's weights into one model.

Rame et al., "Rewarded soups: towards Pareto-optimal alignment by interpolating weights fine-tuned on diverse rewards",
NeurIPS 2023. There the parts are tuned by PPO on one reward each; here by DPO (or SFT) on pairs that one objective
decides, on the rows that every other method is given. The weights are interpolated exactly: W + sum_i w_i s_i B_i A_i,
at the price of one model whatever the weights are (`paretune.policy.several`).
"""

from __future__ import annotations

from paretune.methods.base import Method
from paretune.methods.parts import ObjectivesConfig, fit_objectives, later, objective_learner

METHOD = Method(
    name="soups",
    help="rewarded soups: an adapter for each objective, interpolated by the request's weights",
    config=ObjectivesConfig,
    learner=objective_learner,
    weights="soup",
    encode=later,
    fit=fit_objectives,
)
