"""Items and losses over a prompt's branches: what the methods have in common.

An item is a packed row with roles: which branches form a preference pair, which are taught by likelihood, which pairs
of branches contrast a completion under its own profile and under another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paretune.methods.examples import Example
from paretune.policy.head import SensingHead
from paretune.policy.packed import Branch, Packed
from paretune.training.losses import contrast as contrast_loss
from paretune.training.losses import dpo as dpo_loss
from paretune.training.module import Outputs


@dataclass
class RoleItem:
    """A packed row and the roles of its branches (indices into `branches`)."""

    name: str
    prefix: list[int]
    branches: list[Branch] = field(default_factory=list)
    preference: tuple[int, int] | None = None
    likelihood: list[int] = field(default_factory=list)
    contrast: list[tuple[int, int]] = field(default_factory=list)
    goods: list[list[float]] = field(default_factory=list)
    """[G][M]: the profiles the head should predict, NaN where a value is missing."""
    span: int = 1
    _known: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def packed(self) -> Packed:
        """The packed row."""
        return Packed(self.prefix, self.branches, self.span)

    def add(self, example: Example, answer: int, profile: Mapping[str, float] | None) -> int:
        """The branch of an answer under a profile; one branch serves every role that needs it."""
        key = (answer, example.renderer.profile_text(profile))
        if key not in self._known:
            self._known[key] = len(self.branches)
            self.branches.append(example.branch(answer, profile))
        return self._known[key]


@dataclass(frozen=True)
class Weights:
    """Weight of each part of the loss, and the two betas."""

    dpo: float = 0.0
    likelihood: float = 0.0
    contrast: float = 0.0
    sense: float = 0.0
    beta: float = 0.1
    contrast_beta: float = 0.1


def counts(items: Sequence[RoleItem]) -> dict[str, float]:
    """Denominators of an effective batch: pairs, label tokens taught by likelihood, contrasts, present targets."""
    return {
        "dpo": sum(item.preference is not None for item in items),
        "likelihood": sum(len(item.branches[i].completion) for item in items for i in item.likelihood),
        "contrast": sum(len(item.contrast) for item in items),
        "sense": sum(
            any(value == value for value in column) for item in items for column in zip(*item.goods, strict=True)
        ),
    }


def scored_answers(example: Example, names: Sequence[str] = ()) -> list[int]:
    """Which of an example's different answers have a profile: of all of `names` where they are given, else of any."""
    out: list[int] = []
    for i, each in enumerate(example.answers):
        whole = all(name in each.profile for name in names) if names else bool(each.profile)
        if whole and each not in (example.answers[j] for j in out):
            out.append(i)
    return out


def padded(goods: Sequence[Sequence[Sequence[float]]]) -> Tensor:
    """Good profiles of B prompts, G_b each over M objectives, as one [B, G, M] tensor; NaN fills up."""
    most, width = max(len(each) for each in goods), len(goods[0][0])
    out_BGM = torch.full((len(goods), most, width), float("nan"))
    for i, each in enumerate(goods):
        out_BGM[i, : len(each)] = torch.tensor(each)
    return out_BGM


def sensing_loss(
    head: SensingHead,
    out: Outputs,
    items: Sequence[RoleItem],
    total: Mapping[str, float],
    *,
    weight: float,
    standardise: bool,
) -> tuple[Tensor, dict[str, float]]:
    """The head's weighted share of the effective batch's loss, and its own loss for the log; 0 and {} without one."""
    if out.predicted is None or not weight or not total["sense"]:
        return out.logp.new_zeros(()), {}
    target_BGM = padded([item.goods for item in items]).to(out.predicted.device)
    # the head's loss is a mean over these items' present targets; its share of the effective batch's:
    share = counts(items)["sense"] / total["sense"]
    value = head.loss(out.predicted, target_BGM, standardise=standardise) * share
    return weight * value, {"sense": float(value.detach())}


def branch_losses(
    out: Outputs, reference: Tensor | None, items: Sequence[RoleItem], total: Mapping[str, float], weights: Weights
) -> tuple[Tensor, dict[str, float]]:
    """The weighted share of the branches' losses, and the logged parts (unweighted, as shares of their means)."""
    first: list[int] = []
    start = 0
    for item in items:
        first.append(start)
        start += len(item.branches)
    loss, logged = out.logp.sum() * 0.0, dict[str, float]()
    pairs = [
        (at + item.preference[0], at + item.preference[1])
        for at, item in zip(first, items, strict=True)
        if item.preference
    ]
    if weights.dpo and pairs:
        chosen, rejected = _gather(out.logp, pairs)
        ref_chosen, ref_rejected = _gather(reference if reference is not None else torch.zeros_like(out.logp), pairs)
        value = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=weights.beta).sum() / total["dpo"]
        margin = (chosen - rejected) - (ref_chosen - ref_rejected)
        logged |= {"dpo": float(value.detach()), "dpo_accuracy": float((margin > 0).sum()) / total["dpo"]}
        loss = loss + weights.dpo * value
    taught = [at + i for at, item in zip(first, items, strict=True) for i in item.likelihood]
    if weights.likelihood and taught:
        value = -out.logp[torch.tensor(taught, device=out.logp.device)].sum() / total["likelihood"]
        logged["likelihood"] = float(value.detach())
        loss = loss + weights.likelihood * value
    contrasts = [(at + a, at + b) for at, item in zip(first, items, strict=True) for a, b in item.contrast]
    if contrasts:  # the accuracy is logged even where the loss is off: it shows how far the profile is obeyed
        own, other = _gather(out.logp, contrasts)
        value = contrast_loss(own, other, beta=weights.contrast_beta).sum() / total["contrast"]
        accuracy = float((own > other).sum()) / total["contrast"]
        logged |= {"contrast": float(value.detach()), "control_accuracy": accuracy}
        loss = loss + weights.contrast * value
    return loss, logged


def _gather(values: Tensor, pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    index = torch.tensor(pairs, device=values.device)
    return values[index[:, 0]], values[index[:, 1]]
