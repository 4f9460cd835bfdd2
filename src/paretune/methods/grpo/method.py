"""GRPO: answers sampled to each prompt, scored by the objectives' rewards, and trained by their advantage in the group.

Shao et al. 2024, "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", through TRL's
`GRPOTrainer`; rewards that are standardised one by one: Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization
Policy Optimization for Multi-reward RL Optimization" (arXiv 2601.05242).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from paretune.data.pairs import normalised_scores
from paretune.data.rows import Row
from paretune.data.targets import mean_profile
from paretune.errors import InputError, did_you_mean
from paretune.methods.base import Method
from paretune.methods.examples import Example
from paretune.methods.grpo.config import GrpoConfig
from paretune.methods.grpo.rollout import Rollouts, course
from paretune.methods.prepare import Encoded, Prepared
from paretune.methods.setup import Fitted, Setup, policy_of, trainable
from paretune.policy import Renderer
from paretune.rewards.measure import Scorer
from paretune.rewards.spec import can_score_new


def fit(setup: Setup) -> Fitted:
    """Train one adapter on the prompts of the training part. It cannot be resumed: TRL's checkpoints are pickled.

    Raises `InputError` where TRL is missing, where an objective's reward cannot score new answers, and for weights of
    unknown objectives.
    """
    check(setup)
    config: GrpoConfig = setup.config
    from paretune.methods.grpo.trainer import train_adapter  # where TRL is

    scorer = Scorer(setup.renderer.objectives)
    module = trainable(setup)
    rollouts = Rollouts(module.causal, setup.renderer, course(setup.encoded.train, config), config, scorer)
    metrics: dict[str, Any] = train_adapter(setup, module.peft, rollouts)
    return Fitted(policy_of(setup, module), metrics)


def check(setup: Setup) -> None:
    """`InputError` for what would stop the training, before anything is sampled."""
    if find_spec("trl") is None:
        raise InputError('the method grpo needs the package trl; run: pip install "paretune[grpo]"')
    path = setup.prepared.data["path"]
    if not setup.names:
        raise InputError("the rows have no scores, on which grpo's rewards are scaled; run `paretune score`", file=path)
    for objective in setup.renderer.objectives:
        if not can_score_new(objective):
            raise InputError(
                f"objective '{objective.name}' came with the data ({objective.spec or 'no reward is named'}), and grpo "
                "must score answers that it samples: run `paretune score` with a reward for it, or leave it out "
                "(--objective names those to use)",
                file=path,
            )
    for name in setup.config.weights:
        if name not in setup.names:
            raise InputError(f"there is no objective '{name}'.{did_you_mean(name, setup.names)}", field="weights")


def prompts(config: GrpoConfig, prepared: Prepared, renderer: Renderer, context: int, strict: bool) -> Encoded:
    """Examples of all prompts that leave room for an answer; the others are dropped and counted.

    Whatever answers a row has, its prompt can be trained on. The mean profile is that of all scored answers.
    """
    limit = min(config.max_length, context)
    room = limit - config.max_completion_length
    found = [[_example(row, renderer) for row in rows] for rows in (prepared.split.train, prepared.split.validation)]
    train, validation = ([each for each in part if len(each.prefix) + len(each.suffix(None)) <= room] for part in found)
    dropped = sum(map(len, found)) - len(train) - len(validation)
    if not train or (dropped and strict):
        raise InputError(
            f"{dropped} prompt(s) and an answer of {limit - room} tokens do not fit into {limit}; lower "
            "max_completion_length or raise max_length",
            file=prepared.data["path"],
        )
    causes = prepared.dropped | ({"prompts_too_long": dropped} if dropped else {})
    scored = [normalised_scores(each, renderer.objectives) for row in prepared.split.train for each in row.completions]
    return Encoded(train, validation, mean_profile(scored), 0, causes)


def _example(row: Row, renderer: Renderer) -> Example:
    try:
        return Example(row, renderer.prefix(row.prompt), [], [], renderer)
    except InputError as error:
        raise InputError(f"row '{row.id}': {error.message}") from error


METHOD = Method(
    name="grpo",
    help="reinforcement learning on sampled answers by TRL's GRPO; rewards weighted (needs trl, cannot resume)",
    config=GrpoConfig,
    pairs=False,
    fit=fit,
    encode=prompts,
)
