"""MOD: one adapter for each objective, and every token drawn from the mix of their distributions.

Shi et al., "Decoding-Time Language Model Alignment with Multiple Objectives", NeurIPS 2024: for policies tuned under a
reverse KL penalty from one reference, p ~ prod_i p_i^w_i is the policy of the weighted reward. The adapters are those
of `soups`, trained in the same way from the same settings; a token costs one pass of each model of positive weight
(`paretune.policy.mixture`).
"""

from __future__ import annotations

from pathlib import Path

from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods.base import Method
from paretune.methods.parts import ObjectivesConfig, fit_objectives, later, objective_learner
from paretune.policy import Policy, load_policy, save_policy
from paretune.policy.weights import WeightMap

METHOD = Method(
    name="mod",
    help="multi-objective decoding: an adapter for each objective, mixed token by token",
    config=ObjectivesConfig,
    learner=objective_learner,
    weights="mix",
    encode=later,
    fit=fit_objectives,
)


def from_soups(folder: Path | str, out: Path | str, *, overwrite: bool = False) -> Policy:
    """The `mod` policy of the adapters of a `soups` policy, saved to `out` without training again.

    What training would have given: the two methods differ in what they do at inference alone, so figures and log of the
    training go with it. Raises `InputError` for a policy by another method.
    """
    source = Path(folder)
    policy = load_policy(source)
    if policy.parts is None or policy.method != "soups":
        raise InputError(f"was trained by '{policy.method}', not by 'soups'", file=folder)
    policy.method, policy.weight_map = METHOD.name, WeightMap("mix")
    policy.parts.rule = "mix"
    metrics = read_json(source / "metrics.json")
    save_policy(policy, out, metrics=metrics, overwrite=overwrite, journal=source / "train.jsonl")
    return policy
