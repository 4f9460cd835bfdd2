"""MODPO: one adapter for each vector of preference weights, by DPO with a margin from the other objectives.

Zhou et al., "Beyond One-Preference-Fits-All Alignment: Multi-Objective Direct Preference Optimization", findings of ACL
2024, equation 9. For weights w the pairs are those of the primary objective k (the one of the largest weight, the first
of several), and the loss of a pair is

    -log sigmoid( (1 / w_k) * ( beta * ((logp_c - logp_r) - (ref_c - ref_r)) - sum_{i != k} w_i (r_i(c) - r_i(r)) ) )

In the paper the margins r_i come of reward models that are trained first. Here the rows have a score for every
objective already, and r_i is `margin_scale` times the normalised score: a margin is then in units of log-odds, as those
of the paper are. The default of 4 says that of two completions at the two ends of the scale the better one is preferred
with a probability of sigmoid(4) = .98. With w_k = 1 the loss is DPO's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from paretune.errors import InputError
from paretune.methods.base import Method
from paretune.methods.examples import Example
from paretune.methods.pairwise import RoleItem, counts
from paretune.methods.parts import PairsConfig, Plan, fit_parts, later, objective_pairs
from paretune.methods.prepare import Encoded
from paretune.methods.setup import Fitted, Setup
from paretune.policy.several import Part
from paretune.policy.weights import check_weights, equal_weights
from paretune.profile import Profile
from paretune.training.losses import modpo as modpo_loss
from paretune.training.module import Outputs


@dataclass(frozen=True)
class ModpoConfig(PairsConfig):
    """`weights`: the vectors to train an adapter for (default: all weight on each objective, and equal weights);
    `margin_scale`: log-odds from one end of an objective's scale to the other."""

    weights: list[dict[str, float]] = field(default_factory=list)
    margin_scale: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.margin_scale < float("inf"):
            raise InputError(f"must be 0 or more, found {self.margin_scale}", field="margin_scale")


def vectors(config: ModpoConfig, names: Sequence[str]) -> list[Profile]:
    """The vectors to train for, each once. Raises `InputError` for one that is none."""
    if not config.weights:
        chosen = [{each: float(each == name) for each in names} for name in names] + [equal_weights(names)]
    else:
        try:
            chosen = [check_weights(each, names) for each in config.weights]
        except InputError as error:
            raise InputError(error.message, field="weights") from None
    return list({tuple(each.values()): each for each in chosen}.values())


def primary(weights: Mapping[str, float]) -> str:
    """The objective of the largest weight, the first of several."""
    return max(weights, key=weights.__getitem__)


@dataclass
class MarginItem(RoleItem):
    """Chosen and rejected, and by how much the chosen one is ahead in the other objectives, weighed."""

    margin: float = 0.0


class ModpoLearner:
    """Two branches an item: chosen and rejected, for one vector of weights (equal ones where none are given)."""

    def __init__(
        self,
        examples: Sequence[Example],
        config: ModpoConfig,
        names: Sequence[str],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.examples, self.config = examples, config
        self.weights = dict(weights) if weights is not None else equal_weights(names)
        self.needs_reference = not config.reference_free

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int, epoch: int) -> MarginItem:
        """Chosen and rejected after the plain prompt."""
        example = self.examples[index]
        item = MarginItem(example.row.id, example.prefix)
        item.preference = (item.add(example, 0, None), item.add(example, 1, None))
        item.margin = self.config.margin_scale * _ahead(example, self.weights)
        return item

    def counts(self, items: Sequence[MarginItem]) -> dict[str, float]:
        """Pairs of the effective batch."""
        return counts(items)

    def loss(
        self, out: Outputs, reference: Tensor | None, items: Sequence[MarginItem], total: dict[str, float]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Mean loss a pair; `modpo_accuracy` is the share of pairs that come out in the order the weights ask for."""
        chosen, rejected = out.logp.view(-1, 2).unbind(1)
        known = reference if reference is not None else out.logp.new_zeros(out.logp.shape)
        ref_chosen, ref_rejected = known.view(-1, 2).unbind(1)
        margin = out.logp.new_tensor([item.margin for item in items])
        beta, weight = self.config.beta, self.weights[primary(self.weights)]
        values = modpo_loss(chosen, rejected, ref_chosen, ref_rejected, margin, beta=beta, weight=weight)
        loss = values.sum() / total["dpo"]
        right = beta * ((chosen - rejected) - (ref_chosen - ref_rejected)) > margin
        return loss, {"modpo": float(loss.detach()), "modpo_accuracy": float(right.sum()) / total["dpo"]}


def _others(weights: Mapping[str, float]) -> dict[str, float]:
    """The weights of the objectives beside the primary one that have a say."""
    return {name: value for name, value in weights.items() if value > 0 and name != primary(weights)}


def _ahead(example: Example, weights: Mapping[str, float]) -> float:
    """w_{-k} . (r_{-k}(chosen) - r_{-k}(rejected)) in normalised scores."""
    chosen, rejected = (answer.profile for answer in example.answers[:2])
    return sum(value * (chosen[name] - rejected[name]) for name, value in _others(weights).items())


def scored_for(encoded: Encoded, weights: Mapping[str, float]) -> Encoded:
    """The pairs both of whose completions are scored for every objective that has a say; the others are counted."""

    def whole(example: Example) -> bool:
        return all(name in answer.profile for name in _others(weights) for answer in example.answers[:2])

    train, validation = ([each for each in part if whole(each)] for part in (encoded.train, encoded.validation))
    lost = len(encoded.train) + len(encoded.validation) - len(train) - len(validation)
    dropped = encoded.dropped | ({"no_margin": lost} if lost else {})
    return replace(encoded, train=train, validation=validation, pairs=encoded.pairs - lost, dropped=dropped)


def fit(setup: Setup) -> Fitted:
    """An adapter for each vector of weights."""
    by_objective: dict[str, Encoded] = {}
    plans = []
    for number, weights in enumerate(vectors(setup.config, setup.names), start=1):
        name = primary(weights)
        if name not in by_objective:
            by_objective[name] = objective_pairs(setup, name)
        encoded = scored_for(by_objective[name], weights)
        if not encoded.train:
            others = ", ".join(_others(weights))
            raise InputError(f"no pair of '{name}' has scores for {others} too", file=setup.prepared.data["path"])
        learner = ModpoLearner(encoded.train, setup.config, setup.names, weights)
        plans.append(Plan(Part(f"vector{number}", weights), encoded, learner))
    return fit_parts(setup, plans)


METHOD = Method(
    name="modpo",
    help="multi-objective DPO: an adapter for each vector of weights, the nearest answers",
    config=ModpoConfig,
    learner=ModpoLearner,
    weights="nearest",
    encode=later,
    fit=fit,
)
