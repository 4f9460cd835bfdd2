"""What a method is given to train from, and how one adapter is trained: the parts every method's `fit` is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paretune.errors import InputError
from paretune.methods.base import Method
from paretune.methods.examples import Example
from paretune.methods.prepare import Encoded, Prepared, encode_split, train_keys
from paretune.methods.sensing import refit, target_matrix, warm_up
from paretune.methods.settings import SensingConfig
from paretune.methods.validate import validate
from paretune.policy import Policy, Renderer
from paretune.policy.backbone import context_length, decoder_layers, fingerprint, hidden_size
from paretune.policy.head import SensingHead
from paretune.policy.weights import TEMPERATURE, Rule, WeightMap
from paretune.profile import Profile
from paretune.progress import NO_PROGRESS, Progress
from paretune.training import Checkpoints, Journal, TrainModule, add_adapter, reopen_adapter, run
from paretune.training.guards import measured


@dataclass
class Setup:
    """Data and model, read and loaded once.

    `start` is the policy whose training goes on, if one was given: its adapter and head are where this training begins.
    `checkpoints` is for the loop: a method that trains several adapters in turn gives it to each `run`, with a `part`.
    """

    method: Method
    config: Any
    base: str
    causal: Any
    renderer: Renderer
    prepared: Prepared
    encoded: Encoded
    journal: Journal
    out: Path
    start: Policy | None = None
    strict: bool = False
    progress: Progress = NO_PROGRESS
    checkpoints: Checkpoints | None = None

    @property
    def names(self) -> list[str]:
        """Objective names in order."""
        return [each.name for each in self.renderer.objectives]

    @property
    def pad_id(self) -> int:
        """The padding token's id."""
        return int(self.renderer.tokenizer.pad_token_id)

    def encode(self, rule: Mapping[str, Any]) -> Encoded:
        """The same rows with pairs built by another rule (see `paretune.data.build_pairs`)."""
        return encode_split(
            self.method,
            self.config,
            self.prepared,
            self.renderer,
            context_length(self.causal),
            strict=self.strict,
            rule=rule,
        )


@dataclass
class Fitted:
    """A trained policy, and what its training and validation measured."""

    policy: Policy
    metrics: dict[str, Any] = field(default_factory=dict)


def fit_one(setup: Setup) -> Fitted:
    """Train one adapter (and the head, where the method senses) on the examples: what most methods do.

    Rows that the learner can make nothing of, for want of scores, are counted. Raises `InputError` where none is left.
    """
    config, encoded, progress = setup.config, setup.encoded, setup.progress
    module = trainable(setup)
    assert setup.method.learner is not None
    learner = setup.method.learner(encoded.train, config, setup.names)
    if not len(learner):
        raise InputError(
            f"no row has a completion with the scores that '{setup.method.name}' is taught by; give rows scored for "
            f"{', '.join(setup.names)}, or leave objectives out (--objective names those to use)",
            file=setup.prepared.data["path"],
        )
    if lost := len(encoded.train) - len(learner):
        encoded.dropped["without_the_scores"] = lost
    if isinstance(config, SensingConfig):
        learner.head = module.head  # type: ignore[attr-defined]
        learner.sensed = warm_up(module, encoded, setup.names, config, setup.pad_id, progress)  # type: ignore[attr-defined]
    metrics = run(
        module,
        learner,
        config,
        pad_id=setup.pad_id,
        journal=setup.journal,
        progress=progress,
        checkpoints=setup.checkpoints,
    )
    policy = policy_of(setup, module)
    if isinstance(config, SensingConfig):
        metrics |= refit(policy, encoded, config, progress)
    note = setup.checkpoints.note if setup.checkpoints is not None else lambda text: None
    found = measured(lambda: validate(policy, encoded.validation, progress=progress), note)
    return Fitted(policy, metrics | found)


def trainable(setup: Setup) -> TrainModule:
    """Backbone with an adapter and a head: fresh ones, or those of the policy whose training goes on."""
    config, start = setup.config, setup.start
    peft = add_adapter(setup.causal, config) if start is None else reopen_adapter(start.peft, config)
    if not setup.method.senses:
        return TrainModule(peft, None)
    assert isinstance(config, SensingConfig)
    head = start.head if start is not None else fresh_head(setup, setup.encoded.train)
    assert head is not None
    layer = head.config.layer_of(len(decoder_layers(setup.causal)))
    return TrainModule(
        peft, head.to(setup.causal.device), backbone_grad_scale=config.backbone_grad_scale, readout_layer=layer
    )


def fresh_head(setup: Setup, examples: Sequence[Example]) -> SensingHead:
    """A head that says the training targets' mean."""
    config = setup.config
    torch.manual_seed(config.seed)
    head = SensingHead(hidden_size(setup.causal), len(setup.names), config.head)
    targets_NM = target_matrix(examples, setup.names)
    mean_M = targets_NM.nanmean(0)
    std_M = (targets_NM - mean_M).square().nanmean(0).sqrt()
    head.set_statistics(mean_M, std_M, start_at_mean=config.standardise)
    return head


def policy_of(setup: Setup, module: TrainModule) -> Policy:
    """The policy in memory, ready to be saved."""
    module.eval()
    return Policy(
        causal=module.causal,
        tokenizer=setup.renderer.tokenizer,
        renderer=setup.renderer,
        objectives=list(setup.renderer.objectives),
        method=setup.method.name,
        base=setup.base,
        head=module.head.eval() if module.head is not None else None,
        peft=module.peft,
        metadata=metadata_of(setup),
        weight_map=weight_map_of(setup),
    )


def metadata_of(setup: Setup) -> dict[str, Any]:
    """What policy.json says of data, settings and base model."""
    keys = set(train_keys(setup.encoded.train))
    if setup.start is not None:
        keys |= set(setup.start.metadata.get("train_prompts", ()))
    return {
        "dtype": setup.config.dtype,
        "base_fingerprint": fingerprint(setup.causal),
        "data": setup.prepared.data,
        "config": setup.config.to_dict(),
        "mean_profile": setup.encoded.mean_profile,
        "train_prompts": sorted(keys),
        "adapter": True,
    }


def weight_map_of(setup: Setup) -> WeightMap | None:
    """The method's rule for preference weights; the ends of rule `profile` are those of the scored completions."""
    rule: Rule | None = getattr(setup.config, "weights_rule", setup.method.weights)
    if rule is None or not setup.names:
        return None
    if rule == "profile" and setup.start is not None and setup.start.weight_map is not None:
        return setup.start.weight_map
    if rule == "profile":
        return WeightMap(rule, *ends(setup.encoded.train, setup.names, setup.method.ends))
    if rule == "direction":
        return WeightMap(rule, temperature=getattr(setup.config, "weight_temperature", TEMPERATURE))
    return WeightMap(rule)


def ends(examples: Sequence[Example], names: Sequence[str], quantiles: tuple[float, float]) -> tuple[Profile, Profile]:
    """Two quantiles of each objective over the training completions (at 0 and 1, one odd score of all would be what
    everybody asks for)."""
    low, high = Profile(), Profile()
    for name in names:
        seen = (answer.profile[name] for each in examples for answer in each.answers if name in answer.profile)
        values = torch.tensor(sorted(seen), dtype=torch.float64)
        if not len(values):
            raise InputError(f"no completion that is trained on has a score for objective '{name}'; leave it out")
        low[name], high[name] = (float(torch.quantile(values, q)) for q in quantiles)
    return low, high
